"""What a screen by blocks (--screen) keeps of leaving out every token, and what it costs.

    python tests/benchmarks/screen.py --checkpoint runs/c4/models/long-seed0 --data runs/c4/data \\
        --short-context-length 64 --long-context-lengths 1024 2048 --screens 32 64 128

Both choose by leave_one_out_divergence within a background, in the own far context, of a chunk of each
document. A row a length and screen, of all targets together:
  recall         of the 16 tokens of a target with the largest divergence, the share that the screen leaves
                 out alone too; of their divergence, the share that is in these; of the first of them, the
                 share that the screen ranks first too
  mean_log2_k    by the divergence, over k of 1, 2, 4 … and all far tokens, where the far context's is 0.1
                 nats; `exact` of the exact ranking, `random` of a random one, which tells the scale
  token-forwards of the passes that leave something out, counted; their share of the exact ones; the same of
                 seconds, one after the other on the same chunk
With --lengths-without-exact only the screen runs there, whose cost tells how it grows; that of the null, and
the most memory that the program has taken so far, too.

Shapes: T targets, F far tokens, J studied values of k.
"""

import argparse
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import numpy as np
import pandas as pd
import torch
from matrix_product_peak import use_threads

from pipeline.cli import positive_int, progress, run_stage, stage_parser
from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts, sparse_contexts
from pipeline.measuring.flags import MINIMUM_GAIN, ContextLengths
from pipeline.measuring.rules import ranked, selected_positions, studied_numbers
from pipeline.measuring.sparsity import mean_log2_k
from pipeline.models.load import find_checkpoint, load_olmo
from pipeline.results.schemas import OTHER_DOCUMENT, OWN
from pipeline.text.chunks import Chunk, chunks_of, long_enough_documents
from pipeline.text.folder import TokenizedData

K = 16


def parser() -> argparse.ArgumentParser:
    """The benchmark's command line."""
    benchmark = stage_parser(__doc__)
    add = benchmark.add_argument
    add("--checkpoint", type=Path, required=True, help="run folder of pretrain.py, or a step<N>-unsharded")
    add("--data", type=Path, required=True, help="folder of tokenize_c4.py that the model was trained on")
    add("--short-context-length", type=positive_int, default=64, help="s, in tokens")
    add("--long-context-lengths", type=positive_int, nargs="+", required=True, help="chunk lengths")
    add(
        "--lengths-without-exact", type=positive_int, nargs="*", default=[], help="lengths of the screen only"
    )
    add("--targets-per-chunk", type=positive_int, default=16, help="m, targets at the end of the chunk")
    add("--screens", type=positive_int, nargs="+", default=[64], help="blocks that a round leaves out")
    add("--max-documents", type=positive_int, default=16, help="documents, one chunk of each")
    add("--threads", type=positive_int, default=1, help="threads")
    add("--out", type=Path, help="CSV file of the rows")
    return benchmark


def main(arguments: argparse.Namespace) -> None:
    """Measure both on every chunk, and print the table."""
    use_threads(arguments.threads)
    data, rows = TokenizedData.open(arguments.data), []
    model = load_olmo(find_checkpoint(arguments.checkpoint), torch.device("cpu"), torch.float32)
    for length in [*arguments.long_context_lengths, *arguments.lengths_without_exact]:
        lengths = ContextLengths(arguments.short_context_length, length, arguments.targets_per_chunk)
        documents = long_enough_documents(data, length, arguments.max_documents, 2)
        measurement = Measurement(model, lengths, Batching.for_model(model))
        for index in progress(range(len(documents)), f"screen {length}", "chunk"):
            chunk = chunks_of(documents, index, length, 1, 2)[0]
            exact = length in arguments.long_context_lengths
            rows += of_chunk(chunk, measurement, arguments.screens, with_exact=exact)
    table = pd.DataFrame(rows).groupby(["length", "screen"]).mean()
    table.insert(0, "targets", pd.DataFrame(rows).groupby(["length", "screen"]).size())
    for what in ("token_forwards", "seconds"):
        table[f"{what}_ratio"] = table[what] / table[f"exact_{what}"]
    print(table.round(3).to_string())
    if arguments.out:
        table.to_csv(arguments.out)


def of_chunk(
    chunk: Chunk, measurement: Measurement, screens: list[int], *, with_exact: bool
) -> list[dict[str, Any]]:
    """A row a target and screen."""
    num_far_T = measurement.lengths.num_far_tokens_T
    rows: list[dict[str, Any]] = []
    if with_exact:
        exact, cost = left_out(chunk, measurement)
        scores_TF = exact.necessity.divergence_TF
        top_TK = ranked(scores_TF, min(K, int(num_far_T[0])))
        of_exact = {f"exact_{name}": value for name, value in cost.items()}
        drawn_TF = selected_positions(exact, "random", int(num_far_T[0]), [0])
        log2_ks = {"exact": log2_k(exact, ranked(scores_TF, num_far_T[0])), "random": log2_k(exact, drawn_TF)}
    for screen in screens:
        screening = replace(measurement, screen=screen)
        screened, cost = left_out(chunk, screening)
        row = {"length": measurement.lengths.long_context_length, "screen": screen, **cost}
        if not with_exact:
            _, cost = left_out(chunk, screening, OTHER_DOCUMENT)
            of_null = {f"null_{name}": value for name, value in cost.items()}
            peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            rows.append(row | of_null | {"peak_gib": peak_gib})
            continue
        ranking_TF = ranked(screened.necessity.divergence_TF, int(num_far_T[0]))
        log2_ks["screened"] = log2_k(exact, ranking_TF)
        is_alone_TF = ~np.isnan(screened.divergence_TF)
        for t, top_K in enumerate(top_TK):
            kept_K, worth_K = is_alone_TF[t, top_K], scores_TF[t, top_K]
            rows.append(
                row | of_exact
                | {"recall": kept_K.mean(), "recall_of_divergence": worth_K[kept_K].sum() / worth_K.sum(),
                   "recall_of_first": float(ranking_TF[t, 0] == top_K[0])}
                | {f"mean_log2_k_{name}": of_T[t] for name, of_T in log2_ks.items()}
                | {"mean_log2_k_differs_by": abs(log2_ks["screened"][t] - log2_ks["exact"][t])}
            )  # fmt: skip
    return rows


def left_out(chunk: Chunk, measurement: Measurement, name: str = OWN) -> tuple[FarContext, dict[str, float]]:
    """A far context whose tokens have been left out, and what that took, reading it whole apart."""
    far_context = far_contexts(
        measurement, chunk.token_ids_L, chunk.null_token_ids_L,
        background_ids_BL=chunk.other_token_ids_NL[1:],
    )[name]  # fmt: skip
    _ = far_context.reference, far_context.predictions
    model, num_tokens, compute = measurement.model, 0, measurement.model.hidden_states

    def counting(token_ids_BS: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        nonlocal num_tokens
        num_tokens += token_ids_BS.numel()
        return compute(token_ids_BS, *rest, **named)

    model.hidden_states = counting  # type: ignore[method-assign]
    started = time.perf_counter()
    _ = far_context.necessity
    seconds = time.perf_counter() - started
    model.hidden_states = compute  # type: ignore[method-assign]
    return far_context, {"token_forwards": num_tokens, "seconds": seconds}


def log2_k(context: FarContext, ranking_TF: np.ndarray) -> np.ndarray:
    """mean_log2_k of each target, by the divergence: [T]; NaN without a gain."""
    ks = studied_numbers("nearest", [], ranking_TF.shape[1])  # every power of two, and all
    found_TJ = sparse_contexts(context, {"": ranking_TF}, {"": ks})[""].over_backgrounds.divergences
    gains_T = context.background.divergences
    shares_TJ = 1 - found_TJ / gains_T[:, None]
    values_T = mean_log2_k(shares_TJ, np.array(ks), context.num_far_tokens_T)
    return np.where(gains_T < MINIMUM_GAIN, np.nan, values_T)


if __name__ == "__main__":
    run_stage(parser(), main)
