"""Try the tokens that some model chose on other models, or under another ablation.

The choices are those of a results folder that influential_tokens wrote: for each target, rule and rank a
position. Lengths, documents, rules and numbers k are theirs, and so is the null: the tokens that were chosen
in another document. For each model of --checkpoints: losses and divergences with the short context and the k
tokens that rank first, and how few of them it needs. A choice cannot have fitted another model's noise.

Under the choices' own ablation the results can go into the same folder, where analyses find both: `model`
says who chose, `evaluator` who tried. Under another they need a folder of their own. With --screen, tokens
beyond the largest --k of the choices were not recorded and are not tried.

writes   <results>/{sparse_context_losses,dependency_sparsity}/<model>/<evaluator>/*.parquet
         columns: pipeline/RESULTS.md
resumes  run the same command again; complete shards are kept, other settings are refused

after `make demo`, the paper's figure (seconds):
  python pipeline/evaluate_tokens.py --choices runs/demo/results --data runs/demo/data \\
      --checkpoints runs/demo/models/short-pose --results runs/try/only_chosen --ablation mask
"""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from sparsity_length.cli import Asked, InputError, folder_path, positive_int, run_stage, stage_parser
from sparsity_length.measuring.rules import ABLATIONS, TRIAL_SWAPS
from sparsity_length.measuring.selecting import Selecting
from sparsity_length.measuring.settings import ContextLengths, add_stage_arguments
from sparsity_length.results.files import refuse_changes, sha256_of_files
from sparsity_length.results.read import Results
from sparsity_length.text.folder import TokenizedData

CHOOSING = "influential_tokens"


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add_stage_arguments(stage)
    add = stage.add_argument
    # fmt: off
    add("--choices", type=folder_path, required=True, metavar="RESULTS",
        help="results of influential_tokens, whose chosen tokens are tried on --checkpoints")
    add("--choices-of", metavar="MODEL", help="whose choices, where that folder holds several models'")
    add("--ablation", choices=ABLATIONS,
        help="what stands where a token is left out (default: what stood there for the choices)")
    add("--trial-swaps", type=positive_int, metavar="N",
        help="under --ablation swap: other documents that the tokens are tried among, none of them one that"
        f" stood in while they were chosen (default: the choices', or {TRIAL_SWAPS})")
    # fmt: on
    return stage


def left(arguments: argparse.Namespace, asked: Asked) -> tuple[bool, None]:
    """Refuse nothing before the choices are there, whose settings these are."""
    return True, None


def main(arguments: argparse.Namespace) -> None:
    """Try the choices on every checkpoint, chunk by chunk."""
    results = Results(arguments.choices)
    selector, made_by = _made_by(arguments, results)
    chosen = Selecting.of(made_by["settings"], max_documents=made_by["settings"]["num_documents"])
    tried = replace(
        chosen,
        ablation=arguments.ablation or chosen.ablation,
        trial_swaps=arguments.trial_swaps or chosen.trial_swaps or TRIAL_SWAPS,
        # Choices of --ablation mask were made in no swapped context.
        search_swaps=chosen.search_swaps or 0,
    )
    # Imported late, for a --help, and a refusal, at once.
    from sparsity_length.measuring.sparsity import try_choices
    from sparsity_length.measuring.stage import measure_documents
    from sparsity_length.models.load import name_of

    earlier = Results(arguments.results).made_by(CHOOSING).get(selector)
    if earlier is not None:
        if selector in map(name_of, arguments.checkpoints):
            raise InputError(
                f"model '{selector}' has tried its own choice in {arguments.results} when it chose"
            )
        now = {name: tried.as_metadata.get(name) for name in tried.as_given if name != "max_documents"}
        refuse_changes(
            f"{arguments.results} holds {CHOOSING} of model '{selector}'",
            earlier,
            {**earlier, "settings": earlier["settings"] | now},
            "--results folder",
        )
    choices = _read_choices(results, selector, chosen.lengths)
    files = results.sources(CHOOSING, [selector], must_be_complete=True)

    measure_documents(
        arguments,
        "evaluate_tokens",
        # As many documents as were used: nulls and swaps are the next ones, and wrap around at the last.
        tried,
        lambda model, chunk: try_choices(model, chunk, tried, choices),
        selector=selector,
        inputs={
            "checkpoint": made_by["inputs"]["checkpoint"],
            "choices": sha256_of_files(*(file.path for file in files)),
        },
        model_facts=results.facts(CHOOSING)[selector],
        num_other_documents=tried.num_others,
    )


def _made_by(arguments: argparse.Namespace, chosen: Results) -> tuple[str, dict[str, Any]]:
    """Who chose, and what made the choices; refuse other text than theirs."""
    found = chosen.made_by(CHOOSING)
    name = arguments.choices_of or next(iter(found), None)
    if name not in found or (arguments.choices_of is None and len(found) > 1):
        raise InputError(
            f"--choices {arguments.choices} holds choices of {', '.join(found) or 'no model'}; name one with"
            " --choices-of"
        )
    data = TokenizedData.open(arguments.data)
    made_by = found[name]
    is_same_text = made_by["inputs"]["evaluation_documents"] == data.evaluation_sha256
    if not is_same_text or made_by["settings"]["bos_token_ids"] != list(data.bos_token_ids):
        raise InputError(f"--choices {arguments.choices} are of another text than that of {arguments.data}")
    return name, made_by


def _read_choices(
    chosen: Results, selector: str, lengths: ContextLengths
) -> dict[tuple[Any, ...], np.ndarray]:
    """Document, chunk, distant context and rule -> positions counted from the start of the chunk: [T, K]."""
    keys = ["document_id", "chunk_index", "distant_context", "rule"]
    order = [*keys, "target_position", "rank"]
    rows = chosen.frame(CHOOSING, [*order, "context_position"], {"model": [selector]})
    rows["context_position"] -= rows["chunk_index"] * lengths.long_context_length
    # Sorted by target and rank, and every target has all ranks.
    of_rules = rows.sort_values(order).groupby(keys, sort=False)["context_position"]
    return {key: positions.to_numpy().reshape(lengths.num_targets, -1) for key, positions in of_rules}


if __name__ == "__main__":
    run_stage(parser(), main)
