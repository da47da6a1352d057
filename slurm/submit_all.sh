#!/usr/bin/env bash
# Submit the whole study: tokenize, train four models, measure them. A job starts once those it needs have ended
# well; where one fails, those that need it are cancelled. On the login node:
#   slurm/submit_all.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ! -f slurm/cluster.env ]]; then
  echo "$PWD/slurm/cluster.env is missing: cp slurm/cluster.env.example slurm/cluster.env, and edit it" >&2
  exit 2
fi
# shellcheck source=slurm/cluster.env.example
source slurm/cluster.env

submit() {
  local id
  id=$(sbatch --parsable --kill-on-invalid-dep=yes "$@")
  echo "job $id: $*" >&2
  echo "$id"
}

tokens=$(submit --array="0-$((TOKENIZE_SHARDS - 1))" slurm/tokenize_c4.sh)
data=$(submit --dependency="afterok:$tokens" slurm/merge_c4.sh)

pretrain() {
  submit --dependency="afterok:$data" --job-name="$1" slurm/pretrain.sh "$CONFIG" \
    eval_context_lengths="[$SHORT_TRAIN,$LONG]" "${@:2}"
}
short=$(pretrain short-contiguous seed=0 train_context_length="$SHORT_TRAIN")
pose=$(pretrain short-pose seed=0 train_context_length="$SHORT_TRAIN" position_scheme=pose pose_target_length="$LONG")
long0=$(pretrain long-seed0 seed=0 train_context_length="$LONG")
long1=$(pretrain long-seed1 seed=1 train_context_length="$LONG")

measure() {
  submit --dependency="afterok:$short:$pose:$long0:$long1" --array="0-$((MEASURE_SHARDS - 1))" "$@"
}
measure slurm/loss_differences.sh
measure slurm/length_losses.sh
measure slurm/influential_tokens.sh --checkpoints "$RUN/models/long-seed0"
