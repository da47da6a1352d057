"""The paper's idealized class, sparse functional attention, and its fit on planted correlations."""
