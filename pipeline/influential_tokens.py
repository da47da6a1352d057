"""The few far tokens that carry a prediction, and what is lost by keeping only them.

For each checkpoint and each target t of the evaluation documents:
  1. loss and prediction with everything before it in the chunk (long context), and with the s tokens before
     it (short context). The divergence KL(p(.|long) || p(.|short)) compares these without seeing the answer;
  2. the k far tokens that each rule ranks first, by the loss or, a name with _divergence, by the divergence;
  3. loss and divergence with the short context and those k tokens, nothing else visible anywhere in the
     network; of the controls, random and nearest, at every power of two up to the whole far context;
  4. the same with another document's tokens at the same positions: the null, which tells how much of that is
     an effect;
  5. how many tokens it takes: mean_log2_k, in doublings, which every target with a gain has; and k*, the
     least k that recovers most of the gain; by losses and by divergence.

pipeline/README.md says what each rule and intervention does and costs, and why there is a null.

writes   <results>/{influential_tokens,influences,sparse_context_losses,dependency_sparsity}/model=<name>/
         *.parquet                                            columns: pipeline/RESULTS.md
resumes  run the same command again; complete shards are kept, other settings are refused

full size, on one GPU:
  python pipeline/influential_tokens.py --data runs/c4/data --checkpoints runs/c4/models/long-seed0 \\
      --results runs/c4/results --short-context-length 64 --long-context-length 1024 --targets-per-chunk 64

on a laptop, after `make demo` (half a minute):
  python pipeline/influential_tokens.py --data runs/demo/data --checkpoints runs/demo/models/long-seed0 \\
      --results runs/try/results --short-context-length 16 --long-context-length 256 --max-documents 8
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from typing import Any, cast

import numpy as np

from pipeline.cli import (
    InputError,
    file_path,
    finite_float,
    folder_path,
    fraction,
    logger,
    positive_fraction,
    positive_int,
    random_seed,
    stage_parser,
)
from pipeline.measuring.flags import (
    BLOCKS,
    LONGEST_EXACT,
    MINIMUM_GAIN,
    RECOVERY_FRACTION,
    ContextLengths,
    add_evaluation_arguments,
)
from pipeline.measuring.rules import (
    BACKGROUND,
    DEFAULT_INTERVENTION,
    DEFAULT_KS,
    DEFAULT_RULES,
    INTERVENTIONS,
    RULES,
    find_rule,
    load_rule_file,
    refuse_rules,
    screen_of,
    studied_numbers,
)
from pipeline.results.read import read_artefact, read_made_by, sources
from pipeline.results.schemas import OTHER_DOCUMENT, OWN
from pipeline.results.versions import sha256_of_files
from pipeline.text.folder import TokenizedData

STAGE = "influential_tokens"
ENGINE = "left_out_at_kept_position_ids"
"""How contexts are made, as results name it: what is not in a context is no row of the sequence."""


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add_evaluation_arguments(stage)
    add = stage.add_argument
    # fmt: off
    add("--short-context-length", type=positive_int, required=True, help="s, in tokens")
    add("--k", type=positive_int, nargs="+",
        help=f"numbers of influential tokens studied (default: {', '.join(map(str, DEFAULT_KS))},"
        " as far as the far context goes)")
    add("--rules", nargs="+",
        help=f"selection rules, of: {', '.join(RULES)} (default: {', '.join(DEFAULT_RULES)})")
    add("--rule-file", type=file_path, nargs="+", default=[], metavar="FILE",
        help="Python files with selection rules of your own; analysis/examples/kv_cache_rules.py shows two")
    add("--intervention", choices=INTERVENTIONS, default=DEFAULT_INTERVENTION,
        help="what stands where a token is left out: nothing, or another document's token")
    add("--num-backgrounds", type=positive_int, default=1,
        help="foreign documents that --intervention background takes the mean over")
    add("--judge-with", nargs="+", default=[], metavar="MODEL",
        help="other checkpoints of the same tokenizer, named as --checkpoints are, that the chosen tokens are"
        " tried on too")
    add("--choose-together", action="store_true",
        help="the mean of all --checkpoints' scores chooses, and only --judge-with tries the choice:"
        " cross-fitting; filed under their names joined by +")
    add("--null-fraction", type=positive_fraction, default=1.0,
        help="of the documents, those with a null, controls and rules that say nothing without a null")
    add("--choices", type=folder_path, metavar="RESULTS",
        help="choose nothing: try the tokens that another results folder holds on --checkpoints")
    add("--choices-of", metavar="MODEL", help="whose choices, where that folder holds several models'")
    add("--screen", type=positive_int, metavar="N",
        help="blocks of far tokens that rules leave_one_out* leave out a round, instead of every token; those"
        " that matter are split, down to single tokens. As many as the far context has leave out every token,"
        f" which is so up to {LONGEST_EXACT:,} tokens if not given; beyond, {BLOCKS} and one a target")
    add("--recovery-fraction", type=fraction, default=RECOVERY_FRACTION,
        help="k* recovers this much of the gain")
    add("--minimum-gain", type=finite_float, default=MINIMUM_GAIN,
        help="gain of the far context, in nats, below which a target has no k* and no mean_log2_k")
    add("--seed", type=random_seed, default=0, help="of rules and interventions that draw")
    # fmt: on
    return stage


def check(arguments: argparse.Namespace) -> ContextLengths:
    """Which tokens are predicted; lengths, rules and k that do not fit together are refused."""
    for path in arguments.rule_file:
        load_rule_file(path)
    lengths = ContextLengths(
        arguments.short_context_length,
        arguments.long_context_length,
        arguments.targets_per_chunk,
        arguments.target_stride,
    )
    known: dict[str, Any] = {"k": DEFAULT_KS, "rules": DEFAULT_RULES}
    if arguments.choices is not None and arguments.choices.exists():  # not yet, where a study is planned
        known = _settings_of_choices(arguments)
    smallest = int(lengths.num_far_tokens_T[0])
    arguments.k = arguments.k or [k for k in known["k"] if k <= smallest]
    arguments.rules = arguments.rules or list(known["rules"])
    arguments.screen = screen_of(lengths, arguments.screen, () if arguments.choices else arguments.rules)
    if arguments.k != sorted(set(arguments.k)):
        raise InputError(f"--k {' '.join(map(str, arguments.k))}: name each k once, in ascending order")
    alone = [rule for rule in arguments.rules if find_rule(rule).says_something_alone]
    for is_wrong, sentence in (
        (arguments.choose_together and not arguments.judge_with,
         "--choose-together needs --judge-with: the models that choose do not try their own choice"),
        (arguments.choices and (arguments.judge_with or arguments.choose_together),
         "--choices are tried on --checkpoints; leave out --judge-with and --choose-together"),
        (arguments.null_fraction < 1 and not alone,
         "--null-fraction leaves most documents without any rule; name one that needs no null, such as"
         f" {DEFAULT_RULES[0]}"),
    ):  # fmt: skip
        if is_wrong:
            raise InputError(sentence)
    refuse_rules(
        arguments.rules, intervention=arguments.intervention, largest_k=arguments.k[-1],
        smallest_far_context=smallest
    )  # fmt: skip
    return lengths


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk of every checkpoint."""
    lengths = check(arguments)
    if arguments.choices is not None and not arguments.choices.exists():
        raise InputError(f"--choices {arguments.choices} does not exist; name a results folder")
    # Imported late, for a --help, and a refusal, at once.
    from pipeline.measuring.sparsity import Request, measure_chunk
    from pipeline.measuring.stage import MeasuringStage

    num_far = int(lengths.num_far_tokens_T[0])
    request = Request(
        lengths=lengths, largest_k=arguments.k[-1],
        numbers_of_rule={
            rule: studied_numbers(rule, arguments.k, num_far, arguments.screen) for rule in arguments.rules
        },
        recovery_fraction=arguments.recovery_fraction, minimum_gain=arguments.minimum_gain,
        seed=arguments.seed, intervention=arguments.intervention, num_backgrounds=arguments.num_backgrounds,
        screen=arguments.screen,
        null_fraction=arguments.null_fraction, choosers_judge=not arguments.choose_together,
        choices=None if arguments.choices is None else _read_choices(arguments, lengths),
    )  # fmt: skip

    # A chunk comes with the same chunk of the documents after it: of its null, then of its backgrounds.
    num_backgrounds = arguments.num_backgrounds if arguments.intervention == BACKGROUND else 0
    stage = MeasuringStage(
        arguments, STAGE, _settings(arguments),
        lambda choosers, chunk, judges: measure_chunk(choosers, chunk, judges, request),
        other_models={"--judge-with": arguments.judge_with}, num_other_documents=1 + num_backgrounds,
        has_null=lambda document_id: bool(request.numbers_in(OTHER_DOCUMENT, document_id)),
        together=arguments.choose_together,
    )  # fmt: skip
    measured = {rule for one in stage.documents for rule in request.numbers_in(OWN, one.document_id)}
    if left_out := [rule for rule in arguments.rules if rule not in measured]:
        logger.warning(
            "%s: not measured, as none of the %d documents has a null; raise --null-fraction %g or"
            " --max-documents",
            ", ".join(left_out), len(stage.documents), arguments.null_fraction,
        )  # fmt: skip
    stage.run()


def _settings(arguments: argparse.Namespace) -> dict[str, object]:
    """What decides the numbers; null where the rules and the intervention do not ask for it."""
    names = "short_context_length", "k", "rules", "recovery_fraction", "minimum_gain", "seed", "intervention"

    choices = None
    if arguments.choices is not None:
        chosen = sources(arguments.choices, STAGE, [arguments.choices_of], must_be_complete=True)
        paths = [file.path for file in chosen]
        choices = {"model": arguments.choices_of, "sha256": sha256_of_files(*paths)}

    return {name: getattr(arguments, name) for name in names} | {
        "engine": ENGINE,
        "screen": arguments.screen,
        "num_backgrounds": arguments.num_backgrounds if arguments.intervention == BACKGROUND else None,
        "null_fraction": arguments.null_fraction if arguments.null_fraction < 1 else None,
        "choices": choices,
        "rule_files_sha256": sha256_of_files(*arguments.rule_file) if arguments.rule_file else None,
    }


def _settings_of_choices(arguments: argparse.Namespace) -> dict[str, Any]:
    """How the tokens of --choices were chosen; sets `arguments.choices_of`, and refuses what does not fit."""
    found = read_made_by(arguments.choices, STAGE)
    name = arguments.choices_of or next(iter(found), None)
    if name not in found or (arguments.choices_of is None and len(found) > 1):
        raise InputError(
            f"--choices {arguments.choices} holds choices of {', '.join(found) or 'no model'}; name one with"
            " --choices-of"
        )
    arguments.choices_of, made_by = name, found[name]
    settings: dict[str, Any] = {"target_stride": 1} | made_by["settings"]
    data = TokenizedData.open(arguments.data)
    if made_by["inputs"]["evaluation_documents"] != data.evaluation_sha256:
        raise InputError(f"--choices {arguments.choices} are of another text than that of {arguments.data}")
    # As many documents: of fewer, the last one's null would be another document.
    lengths = [num for num in data.evaluation_lengths() if num >= arguments.long_context_length]
    asked = vars(arguments) | {
        "num_documents": len(lengths[: arguments.max_documents]),
        "bos_token_ids": list(data.bos_token_ids) or None,
    }
    for setting in (
        "short_context_length", "long_context_length", "targets_per_chunk", "target_stride",
        "max_chunks_per_document", "num_documents", "bos_token_ids",
    ):  # fmt: skip
        if (theirs := settings.get(setting)) != asked[setting]:
            raise InputError(
                f"--choices were made with {setting} {theirs}, here it is {asked[setting]}: make them equal"
            )
    if arguments.k and arguments.k[-1] > settings["k"][-1]:
        raise InputError(f"--k {arguments.k[-1]} is more than the {settings['k'][-1]} tokens of --choices")
    if unknown := set(arguments.rules or ()) - set(settings["rules"]):
        raise InputError(f"--choices have no rule {min(unknown)}; they have {', '.join(settings['rules'])}")
    return settings


def _read_choices(
    arguments: argparse.Namespace, lengths: ContextLengths
) -> dict[tuple[str, int], dict[str, dict[str, np.ndarray]]]:
    """Document and chunk -> `Choices`, positions counted from the start of the chunk."""
    keys = ["document_id", "chunk_index", "far_context", "rule"]
    order = [*keys, "target_position", "rank"]
    only = {"model": [arguments.choices_of], "rule": arguments.rules}
    rows = read_artefact(arguments.choices, STAGE, [*order, "context_position"], only).sort_values(order)
    choices: dict[tuple[str, int], dict[str, dict[str, np.ndarray]]] = {}
    for key, of_rule in rows.groupby(keys, sort=False):
        document, chunk, far_context, rule = cast("tuple[str, int, str, str]", key)
        start = chunk * lengths.long_context_length
        positions_TK = of_rule["context_position"].to_numpy().reshape(lengths.num_targets, -1) - start
        choices.setdefault((document, chunk), {}).setdefault(far_context, {})[rule] = positions_TK
    return choices
