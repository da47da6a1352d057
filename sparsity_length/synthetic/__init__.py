"""Tasks whose dependencies are known: examples, models, training, generation, testing, finding the truth."""
