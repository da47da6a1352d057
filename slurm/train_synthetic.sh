#!/usr/bin/env bash
# Train one model of a synthetic task. A requeued job resumes from its newest checkpoint. Arguments go to
# pipeline/train_synthetic.py:
#   sbatch slurm/train_synthetic.sh olmo_configs/synthetic/paper.yaml --task sparse_parity --positions pose \
#     --save-folder runs/synthetic/models/sparse_parity-k4-pose-seed0 largest_sparsity=4 seed=0
# A whole grid: sparsity study olmo_configs/studies/synthetic_paper.yaml --slurm
#SBATCH --job-name=train_synthetic
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
source slurm/job.sh || exit 2

run python pipeline/train_synthetic.py "$@"
