#!/usr/bin/env bash
# Tokenize $TRAIN_TEXT into $RUN/data, a share of its files a task; slurm/merge_c4.sh makes one data set of them:
#   sbatch slurm/tokenize_c4.sh
#   sbatch --array=3,7 slurm/tokenize_c4.sh          only the tasks 3 and 7 again
#SBATCH --job-name=tokenize_c4
#SBATCH --array=0-63
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
source slurm/job.sh || exit 2

run python pipeline/tokenize_c4.py --out "$RUN/data" \
  --source "$TRAIN_TEXT" --evaluation-source "$VALIDATION_TEXT" \
  --tokenizer "$TOKENIZER" --num-workers "$SLURM_CPUS_PER_TASK" \
  --shard-index "$SLURM_ARRAY_TASK_ID" --num-shards "$TOKENIZE_SHARDS" "$@"
