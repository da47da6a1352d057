"""Synthetic tasks: accuracy, found dependencies, the theory's bounds."""
