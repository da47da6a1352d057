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
from typing import Any

import numpy as np

from pipeline.cli import InputError, folder_path, positive_int, run_stage, stage_parser
from pipeline.measuring.flags import ContextLengths, add_stage_arguments
from pipeline.measuring.rules import ABLATIONS, SWAP, TRIAL_SWAPS, Measuring
from pipeline.results.files import refuse_changes, sha256_of_files
from pipeline.results.read import Results
from pipeline.text.folder import TokenizedData

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


def check(arguments: argparse.Namespace) -> None:
    """Refuse what --help alone shows to be wrong: nothing, as all else is the choices'."""


def main(arguments: argparse.Namespace) -> None:
    """Try the choices on every checkpoint, chunk by chunk."""
    chosen = Results(arguments.choices)
    selector, made_by = _made_by(arguments, chosen)
    settings = dict(made_by["settings"])
    settings["ablation"] = arguments.ablation or settings["ablation"]
    is_swap = settings["ablation"] == SWAP
    trial_swaps = arguments.trial_swaps or settings.get("trial_swaps") or TRIAL_SWAPS
    settings["trial_swaps"] = trial_swaps if is_swap else None
    # Choices of --ablation mask were made in no swapped context.
    search_swaps = settings.get("search_swaps") or 0
    settings["search_swaps"] = search_swaps if is_swap else None
    measuring = Measuring(
        lengths=ContextLengths.of(settings),
        rules=settings["rules"],
        ks=settings["k"],
        ablation=settings["ablation"],
        search_swaps=search_swaps,
        trial_swaps=trial_swaps,
        null_fraction=settings.get("null_fraction") or 1.0,
        minimum_gain=settings["minimum_gain"],
        screen=settings.get("screen"),
        seed=settings["seed"],
    )
    # Imported late, for a --help, and a refusal, at once.
    from pipeline.measuring.sparsity import try_choices
    from pipeline.measuring.stage import measure_documents
    from pipeline.models.load import name_of

    earlier = Results(arguments.results).made_by(CHOOSING).get(selector)
    if earlier is not None:
        if selector in map(name_of, arguments.checkpoints):
            raise InputError(
                f"model '{selector}' has tried its own choice in {arguments.results} when it chose"
            )
        refuse_changes(
            f"{arguments.results} holds {CHOOSING} of model '{selector}'",
            earlier,
            {**earlier, "settings": settings},
            "--results folder",
        )
    choices = _read_choices(chosen, selector, measuring.lengths)
    files = chosen.sources(CHOOSING, [selector], must_be_complete=True)

    # As many documents as were used: nulls and swaps are the next ones, and wrap around at the last.
    of_choices = {**settings, "max_documents": settings["num_documents"]}
    measure_documents(
        argparse.Namespace(**(of_choices | vars(arguments))),
        "evaluate_tokens",
        settings,
        lambda model, chunk: try_choices(model, chunk, measuring, choices),
        selector=selector,
        inputs={
            "checkpoint": made_by["inputs"]["checkpoint"],
            "choices": sha256_of_files(*(file.path for file in files)),
        },
        model_facts=chosen.facts(CHOOSING)[selector],
        num_other_documents=measuring.num_others,
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
