#!/usr/bin/env bash
# Pretrain one model. It needs slurm/cluster.env and the study's tokenized text (slurm/tokenize_c4.sh, then
# slurm/merge_c4.sh), and ends at once without them; slurm/submit_all.sh submits all three in order.
# Arguments go to pretrain.py; without any, the job trains the study's model of its name:
#   sbatch slurm/pretrain.sh                                    the first model of the study in cluster.env
#   sbatch --job-name=60m-long-seed1 slurm/pretrain.sh          another one
#   sbatch --job-name=short-pose slurm/pretrain.sh olmo_configs/150m.yaml --data … --save-folder … \
#     train_context_length=512 position_scheme=pose pose_target_length=2048
#   sbatch --nodes=2 --gpus-per-node=8 --cpus-per-task=64 --mem=0 --job-name=1b slurm/pretrain.sh olmo_configs/1b.yaml --data … --save-folder …
#SBATCH --job-name=pretrain
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
source slurm/job.sh || exit 2

run "${torchrun[@]}" pipeline/pretrain.py "$@"
