"""The training loop on accelerate, its configuration, data order and checkpoints."""

import sparsity_length.models  # noqa: F401 - silences what OmegaConf says of ai2-olmo
