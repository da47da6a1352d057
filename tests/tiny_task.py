"""Overrides that make a training of a synthetic task a matter of seconds."""

TINY_TASK = [
    "model.width=16",
    "model.num_heads=1",
    "model.num_layers=1",
    "batch_size=8",
    "num_steps=6",
    "warm_up_steps=2",
    "learning_rate=2e-3",
    "eval_num_examples=8",
]
