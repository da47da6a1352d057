#!/usr/bin/env bash
# Loss against context length of every model in $RUN/models, a share of the documents a task:
#   sbatch slurm/length_losses.sh
#   sbatch --array=3,7 slurm/length_losses.sh        only these tasks again; the end of a log names them
#SBATCH --job-name=length_losses
#SBATCH --array=0-15
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
source slurm/job.sh || exit 2

run "${torchrun[@]}" pipeline/length_losses.py \
  --data "$RUN/data" --checkpoints "$RUN"/models/* --results "$RUN/results" \
  --long-context-length "$LONG" \
  --targets-per-chunk "$TARGETS" --max-documents "$DOCUMENTS" \
  --shard-index "$SLURM_ARRAY_TASK_ID" --num-shards "$MEASURE_SHARDS" "$@"
