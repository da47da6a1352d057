#!/usr/bin/env bash
# Tokenize text; each task takes its share of the files, and slurm/merge_c4.sh makes one data set of their output.
# Arguments go to tokenize_c4.py:
#   sbatch --array=0-63 slurm/tokenize_c4.sh --num-tasks 64 --out … --source … --tokenizer …
#   sbatch --array=3,7 slurm/tokenize_c4.sh <the same>        only the tasks 3 and 7 again
#SBATCH --job-name=tokenize_c4
#SBATCH --array=0-63
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
source slurm/job.sh || exit 2

export RAYON_NUM_THREADS="$SLURM_CPUS_PER_TASK"  # threads of the tokenizer
run python pipeline/tokenize_c4.py --task-index "$SLURM_ARRAY_TASK_ID" "$@"
