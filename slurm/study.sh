#!/usr/bin/env bash
# Run a whole study within one job, command after command: for studies of small models, whose single jobs would mostly
# wait. A requeued job resumes. Arguments go to pipeline/study.py (default: the study of cluster.env):
#   sbatch slurm/study.sh
#   sbatch slurm/study.sh olmo_configs/studies/reference.yaml sizes.300k=null sizes.8m=null
#SBATCH --job-name=study
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
source slurm/job.sh study || exit 2 # with an argument, because no study has such a job
(($#)) || set -- "$STUDY"
# The commands that are left name the folders that they write to.
read -ra writes <<<"$("${container[@]}" python pipeline/study.py "$@" --dry-run | tr '\n' ' ')"
run python pipeline/study.py "$@"
