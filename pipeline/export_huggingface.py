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

from sparsity_length.cli import InputError, folder_path, logger, run_stage, stage_parser


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
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
    return program


def main(arguments: argparse.Namespace) -> None:
    """Load, refuse or write, and compare what was written with what was read."""
    # Imported late, for a --help at once.
    from sparsity_length.models.checkpoints import find_checkpoint
    from sparsity_length.models.export import write_hugging_face_folder
    from sparsity_length.models.olmo import load_stock_olmo
    from sparsity_length.text.folder import TOKENIZER_FILE, TokenizedData

    checkpoint = find_checkpoint(arguments.checkpoint)
    data = TokenizedData.open(arguments.data)
    model = load_stock_olmo(checkpoint)
    # Nothing in a checkpoint names its tokenizer; a wrong one has as a rule another size or EOS.
    if (model.config.vocab_size, model.config.eos_token_id) != (data.vocabulary_size, data.eos_token_id):
        raise InputError(
            f"{checkpoint} was trained with another tokenizer than {arguments.data}: its vocabulary has"
            f" {model.config.vocab_size} tokens and not {data.vocabulary_size}"
        )
    difference = write_hugging_face_folder(
        model, data.whole(TOKENIZER_FILE), data.eos_token_id, arguments.out
    )
    logger.info("wrote %s; its losses are the checkpoint's to %.1e nats", arguments.out, difference)


if __name__ == "__main__":
    run_stage(parser(), main)
