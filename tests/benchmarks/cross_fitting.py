"""Seconds and token-forwards a text to measure mean_log2_k: cross-fitted, and as each chooser alone did it.

Both have the same choosers, judges, k and backgrounds, randomly initialised OLMo models of 0.34 million
parameters, and random texts.
  alone     each chooser ranks its own tokens and their null's, and all choosers and judges try both
  together  the mean of the choosers ranks, the judges try; null and controls on a tenth of the texts

The numbers that both give, what the far context is worth to each judge, must agree to 1e-6 nats; with one
chooser so must mean_log2_k. Else that is said and nothing more.

a few minutes on 2 cores:
  python tests/benchmarks/cross_fitting.py --num-texts 4
"""

import argparse
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]
sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from hand_made_models import CountingLM
from leave_one_out import ModelSize
from matrix_product_peak import machine, use_threads

from pipeline.cli import InputError, positive_int, run_stage, stage_parser
from pipeline.measuring.contexts import Batching
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import DEFAULT_KS, studied_numbers
from pipeline.measuring.sparsity import Request, measure_chunk
from pipeline.measuring.stage import LoadedModel
from pipeline.models.olmo import OLMoCausalLM
from pipeline.results.schemas import Columns, append_columns
from pipeline.text.chunks import Chunk

RULES = ("leave_one_out_divergence", "random", "nearest")
SIZE = ModelSize(num_layers=2, width=64, num_heads=2, vocabulary_size=4096, mlp_ratio=4)
TOLERANCE = 1e-6


def parser() -> argparse.ArgumentParser:
    """The command line."""
    stage = stage_parser(__doc__)
    stage.add_argument("--num-texts", type=positive_int, default=10, help="the first of which has a null")
    stage.add_argument("--num-choosers", type=positive_int, default=2, help="and as many judges")
    stage.add_argument("--num-backgrounds", type=positive_int, default=4, help="foreign texts")
    stage.add_argument("--targets-per-chunk", type=positive_int, default=32, help="m")
    stage.add_argument("--threads", type=positive_int, default=1, help="of torch")
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Measure every text both ways, and print the ratios."""
    use_threads(arguments.threads)
    lengths = ContextLengths(16, 256, arguments.targets_per_chunk)
    num_far = int(lengths.num_far_tokens_T[0])
    ks = [k for k in DEFAULT_KS if k <= num_far]
    models = [_model(seed) for seed in range(2 * arguments.num_choosers)]
    choosers, judges = models[: arguments.num_choosers], models[arguments.num_choosers :]
    seconds, forwards = {"alone": 0.0, "together": 0.0}, {"alone": 0, "together": 0}
    for text in range(arguments.num_texts):
        tokens = np.random.default_rng(text).integers(1, 4096, (2 + arguments.num_backgrounds, 256))
        # Its ID says whether it is in the fraction: one text in ten.
        chunk = Chunk(f"{text % 10}{'0' * 15}", 0, tokens[0], tokens[1:])
        found: dict[str, list[dict[str, Columns]]] = {}
        for way, fraction in (("alone", 1.0), ("together", 0.05)):
            request = Request(
                lengths=lengths, largest_k=ks[-1], recovery_fraction=0.9, minimum_gain=0.0, seed=0,
                numbers_of_rule={rule: studied_numbers(rule, ks, num_far) for rule in RULES},
                null_fraction=fraction, choosers_judge=way == "alone",
            )  # fmt: skip
            before, start = sum(one.model.token_forwards for one in models), perf_counter()
            groups = [[one] for one in choosers] if way == "alone" else [choosers]
            found[way] = [measure_chunk(group, chunk, judges, request) for group in groups]
            seconds[way] += perf_counter() - start
            forwards[way] += sum(one.model.token_forwards for one in models) - before
        _compare(found, [judge.name for judge in judges], exact=len(choosers) == 1)
    for way in seconds:
        per_text = seconds[way] / arguments.num_texts, forwards[way] / arguments.num_texts
        sys.stdout.write(
            f"{way:9s} {per_text[0]:8.2f} s per text  {per_text[1]:12,.0f} token-forwards per text\n"
        )
    ratios = seconds["alone"] / seconds["together"], forwards["alone"] / forwards["together"]
    sys.stdout.write(f"ratio     {ratios[0]:8.2f} of seconds  {ratios[1]:12.2f} of token-forwards\n")
    sys.stdout.write(
        f"{arguments.num_choosers} choosers, {len(judges)} judges; {machine(torch.device('cpu'))}\n"
    )


def _model(seed: int) -> LoadedModel:
    torch.manual_seed(seed)
    olmo = SIZE.model(256, "float32", torch.device("cpu"))
    for weights in olmo.parameters():
        weights.add_(torch.randn_like(weights) * weights.std() / 2)
    model = CountingLM(OLMoCausalLM(olmo))
    return LoadedModel(f"seed{seed}", model, Batching.for_model(model))


def _compare(found: dict[str, list[dict[str, Columns]]], judges: list[str], *, exact: bool) -> None:
    values: dict[tuple[object, ...], dict[str, tuple[float, float]]] = {}
    for way, tables in found.items():
        rows: dict[str, Columns] = {}
        for table in tables:
            append_columns(rows, {"dependency_sparsity": table["dependency_sparsity"]})
        columns = rows["dependency_sparsity"]
        for row, (rule, judge) in enumerate(zip(columns["rule"], columns["judge"], strict=True)):
            if rule == RULES[0] and judge in judges:
                key = judge, columns["criterion"][row], columns["target_position"][row]
                name = "mean_log2_k" if exact else "gain"
                values.setdefault(key, {})[way] = columns["gain"][row], columns[name][row] or 0.0
    difference = max(np.abs(np.subtract(of["alone"], of["together"])).max() for of in values.values())
    if difference > TOLERANCE:
        raise InputError(f"the two ways differ by {difference:.2g}, so no times are shown")


if __name__ == "__main__":
    run_stage(parser(), main)
