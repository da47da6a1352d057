"""What each method takes to choose the tokens of a chunk: seconds and token-forwards a target.

    python tests/benchmarks/method_seconds.py --data runs/methods/data \\
        --checkpoint runs/methods/models/seed1 --short-context-length 8 --long-context-length 240 \\
        --targets-per-chunk 4 --out runs/methods/seconds.json

Of each rule alone, in a far context of its own: nothing is shared, not even with its twin, but the losses of
the long and the short context, which are measured anyway and not timed. The own far context only; the null
takes as much again. Weights of heads are fitted to one chunk before, which costs nothing here: they cost once
a model. A rule's time is the median over chunks, after one chunk that is not counted.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from matrix_product_peak import DTYPES

from pipeline.cli import InputError, positive_int, progress, stage_parser
from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.methods import fitted_head_weights
from pipeline.measuring.rules import RULES, RuleCosts, selected_positions
from pipeline.models.load import Loading, find_model, load_causal_lm
from pipeline.results.schemas import OWN
from pipeline.text.chunks import Chunk, chunks_of, long_enough_documents
from pipeline.text.folder import TokenizedData


def parser() -> argparse.ArgumentParser:
    """The benchmark's command line."""
    benchmark = stage_parser(__doc__)
    add = benchmark.add_argument
    add("--data", type=Path, required=True, help="folder written by tokenize_c4.py")
    add("--checkpoint", required=True, help="an OLMo checkpoint or a Hugging Face causal LM")
    add("--short-context-length", type=positive_int, required=True, help="s, in tokens")
    add("--long-context-length", type=positive_int, required=True, help="chunk length, in tokens")
    add("--targets-per-chunk", type=positive_int, default=16, help="m")
    add("--max-documents", type=positive_int, default=4, help="one chunk of each, the first not counted")
    add("--k", type=positive_int, default=4, help="tokens chosen")
    installed = [name for name, rule in RULES.items() if rule.is_installed]
    add("--rules", nargs="+", default=installed, help="rules that are timed")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="torch device")
    add("--dtype", choices=DTYPES, default="float32", help="of weights and computation")
    add("--out", type=Path, help="JSON file for analysis/methods.py --seconds")
    return benchmark


def main(arguments: argparse.Namespace) -> None:
    """Time every rule, print a table that a page can hold, and write it."""
    lengths = ContextLengths(
        arguments.short_context_length, arguments.long_context_length, arguments.targets_per_chunk
    )
    loading = Loading(torch.device(arguments.device), getattr(torch, arguments.dtype), None, False)
    checkpoint = find_model(arguments.checkpoint, None, False)
    model = load_causal_lm(checkpoint, loading, arguments.long_context_length)
    length = arguments.long_context_length
    documents = long_enough_documents(TokenizedData.open(arguments.data), length, arguments.max_documents)
    chunks = [chunks_of(documents, index, length, 1)[0] for index in range(len(documents))]
    if len(chunks) < 2:
        raise InputError("one chunk is not counted; choose --max-documents 2 or more")
    plain = Measurement(model, lengths, Batching.for_model(model))
    weights_2H = fitted_head_weights([_own(plain, chunks[0])])
    measurement = Measurement(model, lengths, plain.batching, head_weights_2H=weights_2H)
    costs = RuleCosts(lengths.short_context_length, lengths.long_context_length, lengths.targets_per_chunk)
    seconds = {
        rule: _seconds(rule, measurement, chunks, arguments.k) / lengths.targets_per_chunk
        for rule in progress(arguments.rules, "method_seconds", "rule")
    }
    print("| rule | seconds a target | token-forwards a target |\n|---|---|---|")
    for rule, value in sorted(seconds.items(), key=lambda one: one[1]):
        print(f"| {rule} | {value:.5f} | {costs.token_forwards_per_target(rule, arguments.k):,.0f} |")
    if arguments.out:
        told = {"seconds_per_target": seconds, "settings": vars(arguments)}
        arguments.out.write_text(json.dumps(told, indent=1, default=str))


def _own(measurement: Measurement, chunk: Chunk) -> FarContext:
    return far_contexts(measurement, chunk.token_ids_L, chunk.null_token_ids_L)[OWN]


def _seconds(rule: str, measurement: Measurement, chunks: list[Chunk], k: int) -> float:
    """The median over chunks, in seconds a chunk."""
    taken = []
    for chunk in chunks:
        own = _own(measurement, chunk)
        _ = own.predictions, own.short
        _synchronize(measurement)
        start = time.perf_counter()
        selected_positions(own, rule, k, seed=[0])
        _synchronize(measurement)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def _synchronize(measurement: Measurement) -> None:
    if measurement.model.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(parser().parse_args())
