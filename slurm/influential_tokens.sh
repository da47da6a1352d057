#!/usr/bin/env bash
# Find the influential tokens of every target; each task measures its share of the documents. Arguments go to
# influential_tokens.py:
#   sbatch --array=0-15 slurm/influential_tokens.sh --num-tasks 16 --data … --checkpoints … --results … …
#   sbatch --array=3,7 slurm/influential_tokens.sh <the same>        only these tasks again; the end of a log names them
#SBATCH --job-name=influential_tokens
#SBATCH --array=0-15
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

run "${torchrun[@]}" pipeline/influential_tokens.py --task-index "$SLURM_ARRAY_TASK_ID" "$@"
