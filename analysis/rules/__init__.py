"""What the selection rules recover, each beside its null."""
