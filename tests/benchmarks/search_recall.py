"""How many of the most influential tokens leave_one_out_search finds, and at what cost, on a trained model.

    python tests/benchmarks/search_recall.py --data runs/demo/data --checkpoint runs/demo/models/long-seed0 \\
        --short-context-length 8 --long-context-length 256 --targets-per-chunk 4 --max-documents 8
    python tests/benchmarks/search_recall.py --data runs/wiki/data --checkpoint runs/wiki/models/pose2048 \\
        --short-context-length 64 --long-context-length 1024 --max-documents 20 --out recall.json

One chunk a document. All influences are measured once; a search returns the same numbers for the tokens that
it removes (tests/influence/test_leave_one_out_search.py), so what it finds at each budget is read off them.
The budget is everything that a search runs, as a share of what leave_one_out runs, in token-forwards; a row
of a backward pass counts as two. Removed likewise, in another order: by the gate gradient, by attention, by
attention with a learned weight a head (fitted to --learning-chunks of training tokens, which is not counted),
and by spans of 16 tokens, each removed whole (group testing), the tokens of the span that matters most first.

recall@k        tokens of the exact S_k found, of all of them; their influence, as a share of S_k's
above 0.01      the same for all tokens with an influence above 0.01 nats, however many
regret@k        sparse-context loss of the k best tokens found, less that of the exact S_k, nats
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from pipeline.cli import fraction, positive_int, progress
from pipeline.measuring.contexts import Batching, Measurement, PackedSequence
from pipeline.measuring.far_context import (
    FarContext,
    estimated_losses,
    exhaustive_cost,
    far_contexts,
    removal_costs,
    reruns_within,
    rows_to_remove,
)
from pipeline.measuring.flags import DTYPES, ContextLengths
from pipeline.measuring.methods import fitted_head_weights, learned_attention
from pipeline.models.interface import InspectableLM, target_losses
from pipeline.models.load import Loading, find_model, load_causal_lm
from pipeline.results.statistics import Interval, ratio_of_sums
from pipeline.text.chunks import chunks_of, long_enough_documents
from pipeline.text.folder import TokenizedData, training_chunks

SPAN, LEAST_INFLUENCE = 16, 0.01

Counts = dict[str, tuple[float, float]]
"""measure -> numerator and denominator, summed over the targets of one document."""
Scores = Callable[[PackedSequence, float], tuple[np.ndarray, int]]
"""(sequence, budget) -> what its tokens are ordered by, [T, F], and the token-forwards that took."""


def parser() -> argparse.ArgumentParser:
    """The benchmark's command line."""
    benchmark = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = benchmark.add_argument
    add("--data", type=Path, required=True, help="folder written by tokenize_c4.py")
    add("--checkpoint", required=True, help="an OLMo checkpoint or a Hugging Face causal LM")
    add("--short-context-length", type=positive_int, required=True, help="s, in tokens")
    add("--long-context-length", type=positive_int, required=True, help="chunk length, in tokens")
    add("--targets-per-chunk", type=positive_int, default=16, help="m")
    add("--max-documents", type=positive_int, default=20, help="one chunk of each")
    add("--budgets", type=fraction, nargs="+", default=[0.1, 0.15, 0.2, 0.3], help="shares of the exact cost")
    add("--k", type=positive_int, nargs="+", default=[1, 2, 4, 8], help="numbers of influential tokens")
    add("--learning-chunks", type=positive_int, help="learned attention too; not if not given")
    add("--null", action="store_true", help="search the far context of the other document, not the own")
    add("--tokens-per-batch", type=positive_int, default=8192, help="tokens a forward pass may hold")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="torch device")
    add("--dtype", choices=DTYPES, default="float32", help="of weights and computation")
    add("--out", type=Path, help="JSON file of every interval, and of each document's counts")
    return benchmark


def main(arguments: argparse.Namespace) -> None:
    """Measure, and print a table that grows with each document's counts."""
    lengths = ContextLengths(
        arguments.short_context_length, arguments.long_context_length, arguments.targets_per_chunk
    )
    checkpoint = find_model(arguments.checkpoint, None, False)
    loading = Loading(torch.device(arguments.device), getattr(torch, arguments.dtype), None, False)
    model = load_causal_lm(checkpoint, loading, arguments.long_context_length)
    data = TokenizedData.open(arguments.data)
    documents = long_enough_documents(data, arguments.long_context_length, arguments.max_documents)
    measurement = Measurement(model, lengths, Batching(arguments.tokens_per_batch))
    if arguments.learning_chunks:
        chunks = training_chunks(data, arguments.long_context_length, arguments.learning_chunks)
        contexts = (far_contexts(measurement, chunk_L, chunk_L)["own"] for chunk_L in chunks)
        weights = fitted_head_weights(contexts, "learned_attention")
        measurement = replace(measurement, head_weights=weights)
    counts_of: dict[str, list[Counts]] = {}
    for index in progress(range(len(documents)), "search_recall", "document"):
        (chunk,) = chunks_of(documents, index, arguments.long_context_length, 1)
        own, null = far_contexts(
            measurement,
            chunk.token_ids_L,
            chunk.null_token_ids_L,
        ).values()
        for search, counts in _document(null if arguments.null else own, arguments):
            counts_of.setdefault(search, []).append(counts)
        if arguments.out:
            arguments.out.write_text(json.dumps(_summary(counts_of, arguments), indent=1, default=str))
    _print_table(counts_of)


def _document(context: FarContext, arguments: argparse.Namespace) -> Iterator[tuple[str, Counts]]:
    """(search, counts) of every order and budget."""
    exact_TF, max_k = context.influence_TF, max(arguments.k)
    best_TK = _ranked(exact_TF)[:, :max_k]
    for order, scores_of in _orders(context).items():
        for budget in arguments.budgets:
            removed_TF, spent = _removed(context, scores_of, budget)
            found_TK = _ranked(np.where(removed_TF, exact_TF, np.nan))[:, :max_k]
            counts = _recalls(exact_TF, removed_TF, best_TK, found_TK, arguments.k)
            if order == "estimates":
                counts |= _regrets(context, best_TK, found_TK, arguments.k)
            yield f"{order} {budget:.0%}", counts | {"cost": spent}


def _orders(context: FarContext) -> dict[str, Scores]:
    """What tokens may be ordered by. Only the search's own estimates depend on the budget."""

    def estimates(sequence: PackedSequence, budget: float) -> tuple[np.ndarray, int]:
        reruns = reruns_within(sequence, budget)
        return estimated_losses(context.model, reruns, context.measurement.batching), reruns.cost

    spans = {id(sequence): _span_scores(context, sequence) for sequence in context.sequences}
    orders: dict[str, Scores] = {
        "estimates": estimates,
        "spans": lambda sequence, budget: spans[id(sequence)],
    }
    if isinstance(context.model, InspectableLM) and len(context.sequences) == 1:
        num_rows = len(context.sequences[0].token_ids_S)
        passes = 1 + 2 * len(context.num_far_tokens_T)
        orders["gradient"] = lambda sequence, budget: (-context.gate_gradient_TF, num_rows * passes)
        orders["attention"] = lambda sequence, budget: (context.attention_TF, num_rows)
        if context.measurement.head_weights is not None:
            orders["learned_attention"] = lambda sequence, budget: (learned_attention(context), num_rows)
    return orders


def _removed(context: FarContext, scores_of: Scores, budget: float) -> tuple[np.ndarray, tuple[float, float]]:
    """Which influences a search measures, bool [T, F]; token-forwards spent, and those of all of them."""
    removed_TF = np.zeros(context.influence_TF.shape, dtype=bool)
    spent = total = first = 0
    for sequence in context.sequences:
        scores_TF, cost = scores_of(sequence, budget)
        costs_F, everything = removal_costs(sequence), exhaustive_cost(sequence)
        cost += len(sequence.token_ids_S)
        rows_R = rows_to_remove(scores_TF, costs_F, budget * everything - cost)
        removed_TF[first : first + len(scores_TF), rows_R] = True
        spent, total = spent + cost + int(costs_F[rows_R].sum()), total + everything
        first += len(scores_TF)
    return removed_TF & ~np.isnan(context.influence_TF), (spent, total)


def _span_scores(context: FarContext, sequence: PackedSequence) -> tuple[np.ndarray, int]:
    """A far token's score is the loss without its whole span; a span's removal costs the rows after it."""
    num_rows, num_far_T = len(sequence.token_ids_S), sequence.num_far_tokens_T
    scores_TF = np.full((len(num_far_T), int(num_far_T[-1])), np.nan, dtype=np.float32)
    cost, device = num_rows, context.model.device
    visible_SS = sequence.visible_SS
    visible_SS = np.tri(num_rows, dtype=bool) if visible_SS is None else visible_SS
    for start in range(0, scores_TF.shape[1], SPAN):
        without_SS = visible_SS.copy()
        without_SS[:, start : start + SPAN] = False
        losses_1T = target_losses(
            context.model,
            torch.as_tensor(sequence.token_ids_S[None], device=device),
            torch.as_tensor(sequence.position_ids_S[None], device=device),
            torch.as_tensor((without_SS | np.eye(num_rows, dtype=bool))[None], device=device),
            torch.as_tensor(sequence.query_rows_T[None], device=device),
            torch.as_tensor(sequence.target_ids_T[None], device=device),
        )
        scores_TF[:, start : start + SPAN] = losses_1T[0, :, None].cpu().numpy()
        cost += max(0, num_rows - start - SPAN)
    is_far_TF = np.arange(scores_TF.shape[1]) < num_far_T[:, None]
    return np.where(is_far_TF, scores_TF, np.nan), cost


def _ranked(values_TF: np.ndarray) -> np.ndarray:
    return np.argsort(-np.nan_to_num(values_TF, nan=-np.inf), axis=1, kind="stable")


def _recalls(
    exact_TF: np.ndarray, removed_TF: np.ndarray, best_TK: np.ndarray, found_TK: np.ndarray, ks: list[int]
) -> Counts:
    counts: Counts = {}
    measured_TF = np.where(removed_TF, exact_TF, 0.0)
    for k in ks:
        best = np.take_along_axis(exact_TF, best_TK[:, :k], 1)
        is_found = np.take_along_axis(removed_TF, best_TK[:, :k], 1)
        of_found = np.take_along_axis(measured_TF, found_TK[:, :k], 1)
        counts[f"recall@{k}"] = (float(is_found.sum()), float(is_found.size))
        counts[f"influence@{k}"] = (float(of_found.sum()), float(best.sum()))
    is_large_TF = np.nan_to_num(exact_TF, nan=-np.inf) > LEAST_INFLUENCE
    counts[f"above {LEAST_INFLUENCE}"] = (float((removed_TF & is_large_TF).sum()), float(is_large_TF.sum()))
    return counts


def _regrets(context: FarContext, best_TK: np.ndarray, found_TK: np.ndarray, ks: list[int]) -> Counts:
    every_target_T = np.arange(len(best_TK))
    return {
        f"regret@{k}": (
            float(np.sum(context.measured_with(every_target_T, found_TK[:, :k]).losses
                         - context.measured_with(every_target_T, best_TK[:, :k]).losses)),
            float(len(best_TK)),
        )
        for k in ks
    }  # fmt: skip


def _summary(counts_of: dict[str, list[Counts]], arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "settings": vars(arguments),
        "intervals": {
            search: {name: vars(_interval(counts, name)) for name in counts[0]}
            for search, counts in counts_of.items()
        },
        "documents": counts_of,
    }


def _interval(counts: list[Counts], name: str) -> Interval:
    pairs_D2 = np.array([document.get(name, (0.0, 0.0)) for document in counts])
    return ratio_of_sums(pairs_D2[:, 0], pairs_D2[:, 1])


def _print_table(counts_of: dict[str, list[Counts]]) -> None:
    names = list(dict.fromkeys(name for counts in counts_of.values() for name in counts[0]))
    print("| search | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for search, counts in counts_of.items():
        cells = [str(_interval(counts, name)) if name in counts[0] else "" for name in names]
        print(f"| {search} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(parser().parse_args())
