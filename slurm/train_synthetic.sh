#!/usr/bin/env bash
# One run of a grid of synthetic runs a task, as pipeline/plan_synthetic.py counts them; it submits this script:
#   python pipeline/plan_synthetic.py olmo_configs/synthetic/paper.yaml --tasks sparse_parity --positions pose \
#     --largest-sparsities 4 6 8 10 12 --seeds 0 1 2 --models runs/synthetic --slurm | sh
# Each task becomes a pipeline/train_synthetic.py. Of an array, submit the missing tasks again with --array=3,7.
#SBATCH --job-name=train_synthetic
#SBATCH --array=0
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
source slurm/job.sh || exit 2

run python pipeline/plan_synthetic.py "$@" --run "$SLURM_ARRAY_TASK_ID"
