"""Export a trained OLMo as a Hugging Face folder (OlmoForCausalLM), to share it or read it with other tools.

Writes config.json, model.safetensors, tokenizer.json and tokenizer_config.json, in float32, and their SHA-256
in complete.json; checks on 32 tokens that the exported model gives the checkpoint's losses to 1e-4 nats. The
measuring stages read the folder like any other model, and refuse it where a file is not the one that was
written; AutoModelForCausalLM and AutoTokenizer load it without a network. Results are filed under the name of
the folder, so give it another than the run's.

full size:
  python pipeline/export_huggingface.py --checkpoint runs/c4/models/long --data runs/c4/data \\
      --out runs/c4/exported/long-hf

on a laptop, after `make demo` (seconds):
  python pipeline/export_huggingface.py --checkpoint runs/demo/models/long-seed0 --data runs/demo/data \\
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
        help="an OLMo checkpoint, or a run folder for its newest",
    )
    add(
        "--data",
        type=folder_path,
        required=True,
        help="folder of tokenize_c4.py that the model was trained on",
    )
    add("--out", type=folder_path, required=True, help="the folder to write; it must not exist")


STAGE = Stage(__doc__, add_flags, run=late("sparsity_length.models.export:export"))


if __name__ == "__main__":
    STAGE.main()
