"""`python -m sparsity_length NAME`: the command `sparsity`, by this very Python."""

from sparsity_length.cli import main

if __name__ == "__main__":
    main()
