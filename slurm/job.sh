# shellcheck shell=bash
# What every job here begins with; sourced by the scripts, in the folder that sbatch was typed in.

# A task of an array is named by both numbers: its own ID may be that of the whole array.
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}

# What the command has saved: the files by name in the folders that it writes, without those that come and go.
saved() {
  local word folder=false
  for word in "$@"; do
    case $word in
      --out | --results | --save-folder) folder=true ;;
      --out=* | --results=* | --save-folder=*) saved_in "${word#*=}" ;;
      *) if $folder; then saved_in "$word"; fi; folder=false ;;
    esac
  done
}

saved_in() {
  find -L "$1" -type f ! -name '.*' ! -name 'lock*.json' 2>/dev/null | LC_ALL=C sort || true
}

# Slurm sends this shell USR1 shortly before the time limit (#SBATCH --signal). The command gets SIGTERM, and once it
# has ended, the job goes back into the queue, to resume from what was saved. Had it saved nothing since it started, it
# would come back to this very place for ever: it fails.
requeue() {
  trap '' TERM USR1 # from here on it is the requeue that ends this shell
  echo "--- $(date) the time limit is near: stopping"
  scancel --signal=TERM "$job" || true
  wait
  if [[ $(saved "${command[@]}") == "$saved_before" ]]; then
    echo "--- $(date) nothing was saved within the time limit, so that the job would never end: give it a longer" \
      "--time, more processors, or less to do between two files (tokenize_c4 --tokens-per-part, more shards or tasks)"
    exit 1
  fi
  if ! scontrol requeue "$job"; then
    echo "--- $(date) scontrol could not requeue this job: submit the same command again to resume from what is saved"
    exit 75
  fi
  echo "--- $(date) back into the queue"
  sleep 60
}
trap requeue USR1

# Run a command, once on each node. `writes` may name what it writes to in the words of other commands.
writes=()
run() {
  command=("$@" "${writes[@]}")
  saved_before=$(saved "${command[@]}")
  srun --ntasks-per-node=1 "${container[@]}" "$@" &
  wait $!
}

if [[ ! -f slurm/cluster.env ]]; then
  echo "$PWD/slurm/cluster.env is missing: in the repository root, cp slurm/cluster.env.example slurm/cluster.env," \
    "edit it, and submit from there" >&2
  exit 2
fi
# shellcheck source=slurm/cluster.env.example
source slurm/cluster.env
set -euo pipefail
read -ra container <<<"${CONTAINER:-}" # the words before each program, if cluster.env names a container

# Submitted without arguments: those of the job of this name in the study of cluster.env, or of its first of this kind.
if [[ $# -eq 0 ]]; then
  words=$("${container[@]}" python pipeline/study.py "$STUDY" --job "$SLURM_JOB_NAME") || exit 2
  mapfile -t words <<<"$words"
  log=${words[0]}/$SLURM_JOB_NAME-$job.log
  echo "$SLURM_JOB_NAME $job writes to $log"
  mkdir -p "${words[0]}"
  exec >>"$log" 2>&1
  set -- "${words[@]:1}"
  # The script's own --array may have more tasks than the study.
  if [[ ${1:-} == --num-tasks ]] && ((${SLURM_ARRAY_TASK_ID:-0} >= $2)); then
    echo "--- $(date) task ${SLURM_ARRAY_TASK_ID:-0} is none of the study's $2: nothing to do"
    exit 0
  fi
fi

# Compute nodes often have no network, and libraries that look for one wait until they give up.
export HF_HUB_OFFLINE=1
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # which srun does not take over by itself
export PET_SHUTDOWN_TIMEOUT=110                     # seconds that torchrun grants its processes to save

echo "--- $(date) $SLURM_JOB_NAME $job on $SLURM_JOB_NODELIST, restart ${SLURM_RESTART_COUNT:-0}"

# One process per GPU on every node; they meet on the first node, which runs this, at its address: not every cluster knows
# its nodes by name. Which node is the first torchrun would ask of the names, too.
address=$(hostname -I 2>/dev/null | cut -d' ' -f1) || true
# shellcheck disable=SC2016,SC2034
torchrun=(bash -c 'exec torchrun --rdzv-conf="is_host=$((SLURM_NODEID == 0))" "$@"' torchrun
  --nnodes="$SLURM_NNODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" --rdzv-backend=c10d --rdzv-id="$job"
  --rdzv-endpoint="${RENDEZVOUS_HOST:-${address:-$(hostname)}}:$((20000 + SLURM_JOB_ID % 10000))")
