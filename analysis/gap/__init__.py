"""Generalization gaps, their slopes by sparsity, model sizes."""
