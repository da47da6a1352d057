#!/usr/bin/env bash
# Run the tests that need a GPU (make test-gpu): the first job to submit on a new cluster. It needs slurm/cluster.env
# and the extra `test`, takes at most ten minutes, and fails if PyTorch sees no GPU. Arguments go to pytest:
#   sbatch slurm/test_gpu.sh
#SBATCH --job-name=test_gpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=00:10:00
source slurm/job.sh pytest || exit 2 # with an argument, because no study has such a job

run python -c 'import sys, torch; torch.cuda.is_available() or sys.exit("PyTorch sees no GPU on this node: install the"
  " CUDA build that fits the driver (nvidia-smi), or ask for another partition")'
run python -m pytest -m gpu "$@"
