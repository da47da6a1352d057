#!/usr/bin/env bash
# Measure the loss of every target with the short and the long context; each task measures its share of the documents.
# Arguments go to loss_differences.py:
#   sbatch --array=0-15 slurm/loss_differences.sh --num-tasks 16 --data … --checkpoints … --results … …
#   sbatch --array=3,7 slurm/loss_differences.sh <the same>        only these tasks again; the end of a log names them
#SBATCH --job-name=loss_differences
#SBATCH --array=0-15
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
source slurm/job.sh || exit 2

run "${torchrun[@]}" pipeline/loss_differences.py --task-index "$SLURM_ARRAY_TASK_ID" "$@"
