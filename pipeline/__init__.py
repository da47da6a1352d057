"""The programs, one a file: `python pipeline/NAME.py`, or `sparsity NAME` once installed."""
