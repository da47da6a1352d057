"""The programs, one per file: `python pipeline/NAME.py`, or `sparsity NAME` once installed."""
