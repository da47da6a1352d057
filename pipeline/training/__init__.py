"""The training loop on accelerate, its configuration, data order and checkpoints."""

import pipeline.models  # noqa: F401 - silences what OmegaConf says of ai2-olmo
