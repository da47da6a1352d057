#!/usr/bin/env bash
# Whether the rules find the tokens that truly decide in synthetic tasks; what follows goes to
# pipeline/found_dependencies.py:
#   sbatch slurm/found_dependencies.sh --task sparse_parity --checkpoints runs/synthetic/models/sparse_parity-* \
#     --results runs/synthetic/results --sizes 50 100 --sparsities 1 2 4 8 --largest-k 16 --num-examples 1000
#SBATCH --job-name=found_dependencies
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
source slurm/job.sh || exit 2

run python pipeline/found_dependencies.py "$@"
