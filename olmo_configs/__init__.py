"""Configurations of models, synthetic tasks and studies: data that is installed with the library."""
