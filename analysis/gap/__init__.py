"""Generalization gaps by the number of tokens needed, and by model size."""
