"""The training loop on accelerate, its configuration, data order and checkpoints."""
