#!/usr/bin/env bash
# Measure the accuracy of synthetic models at every size and k, or what their answers depend on (--dependencies). A
# requeued job continues with the next. Arguments go to pipeline/evaluate_synthetic.py:
#   sbatch slurm/evaluate_synthetic.sh --task sparse_parity --checkpoints runs/synthetic/models/sparse_parity-* \
#     --results runs/synthetic/results --sizes 20 50 100 200 300 400 500 --sparsities 4 6 8 10 12 14 16
#SBATCH --job-name=evaluate_synthetic
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
source slurm/job.sh || exit 2

run python pipeline/evaluate_synthetic.py "$@"
