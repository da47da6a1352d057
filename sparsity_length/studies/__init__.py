"""A whole study from one file: what it says, the commands it means, how they are run."""
