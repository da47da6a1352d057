"""Synthetic tasks: accuracy, recovered dependencies, the theory's bounds."""
