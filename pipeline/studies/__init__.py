"""A whole study from one file: what it says, the commands it means, what they cost, how they are run."""
