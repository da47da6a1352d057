"""Position IDs: which number each token of a training sequence is told it stands at."""
