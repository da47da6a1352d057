"""Export a trained OLMo model as a Hugging Face folder.

Other tools can read the folder, which is for OlmoForCausalLM and can be shared. It holds config.json,
generation_config.json, model.safetensors in float32, tokenizer.json, tokenizer_config.json, and complete.json
with their SHA-256. The program checks on 32 tokens that the exported model gives the checkpoint's losses to
within 1e-4 nats. AutoModelForCausalLM and AutoTokenizer load the folder without a network. The measuring
programs read it like any other model and refuse it if a file has changed. They file results under the
folder's name, so name it differently from the run.

At full size:
  sparsity export_huggingface --checkpoint runs/c4/models/long --data runs/c4/data \\
      --out runs/c4/exported/long-hf

On a laptop, after `make demo` (takes seconds):
  sparsity export_huggingface --checkpoint runs/demo/models/long-seed0 --data runs/demo/data \\
      --out runs/demo/exported/long-seed0-hf
"""

import argparse

from sparsity_length.cli import Stage, folder_path, late


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the checkpoint, its data and the folder to write."""
    add = parser.add_argument
    add(
        "--checkpoint",
        type=folder_path,
        required=True,
        help="OLMo checkpoint, or run folder, of which the newest checkpoint is used",
    )
    add(
        "--data",
        type=folder_path,
        required=True,
        help="folder of tokenize_c4 that the model was trained on",
    )
    add("--out", type=folder_path, required=True, help="folder to write, which must not exist yet")


STAGE = Stage(__doc__, add_flags, run=late("sparsity_length.models.export:export"))


if __name__ == "__main__":
    STAGE.main()
