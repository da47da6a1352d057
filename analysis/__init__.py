"""Programs and notebooks that read results, and the kept results of this repository's studies."""
