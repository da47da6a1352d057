"""Synthetic tasks whose dependencies are known: which earlier tokens decide each answer."""
