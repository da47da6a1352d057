"""Compare --screen N with exact leave-one-out: agreement, and forward tokens.

  python tests/benchmarks/screen.py --texts 4 --out screen.jsonl       # on SmolLM2, 512 tokens
  python tests/benchmarks/screen.py --length 1024 --texts 1 --screens 16 --out screen.jsonl

The program measures 8 predictions of each text, every eighth of the last 64, with 32 near tokens, by removal.
It prints
  recall           the fraction of the exact top 16 (by KL) that the screen ranks among its first 16
  top 1            how often the exact first token is the screen's first
  doublings        `mean_log2_k` of the screen's ranking, k up to 128, minus that of the exact one
  forward tokens   the cost of the screen, as a fraction of that of exact leave-one-out
Exact leave-one-out of a text of 512 tokens takes about 130,000 forward tokens: five minutes on one core with
AVX-512 for 135 M parameters.
"""

import argparse
import sys
from functools import partial
from typing import Any

import by_text
import numpy as np
import pandas as pd

from sparsity_length.cli import Stage
from sparsity_length.measuring import contexts, far_context, rules, search, settings, sparsity
from sparsity_length.models import given
from sparsity_length.text.tokenizer import TokenizedText

TOP = 16
KS = [1, 2, 4, 8, 16, 32, 64, 128]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    by_text.add_flags(parser)
    parser.add_argument("--short", type=int, default=32, help="near tokens")
    parser.add_argument("--screens", type=int, nargs="+", default=[16, 32], help="N: tokens left out exactly")


def measured(arguments: argparse.Namespace, name: str, text: TokenizedText) -> dict[str, Any]:
    """The numbers of one text, by N."""
    text_L = text.token_ids_N[: arguments.length]
    found = given.GivenModel(name)
    model = found.ready(len(text_L), [text_L], found.tokenizer(), text.bos_token_ids)
    lengths = settings.ContextLengths(arguments.short, len(text_L), 64, 8)
    batching = contexts.Batching.for_model(model)
    far = far_context.FarContext(model, lengths, batching, text_L, text_L)
    sequence = contexts.own_context(text_L, lengths)
    full = contexts.full_pass(model, sequence)

    def searched(num_exact: int | None) -> tuple[np.ndarray, int]:
        """The ranking of each target's distant tokens by the KL, [T, 128], and forward tokens."""
        before = model.num_rows_run
        _, scores_2TF = search.leave_one_out(model, sequence, batching, full, (None,), num_exact)
        return rules.ranked(scores_2TF[1], KS[-1]), model.num_rows_run - before

    def doublings(ranking_TK: np.ndarray) -> float:
        left_TJ = far_context.sparse_contexts(far, {"rule": (ranking_TK, KS)})["rule"].divergences[..., 0]
        shares_TJ = 1 - left_TJ / far.short.divergences[:, None]
        return float(sparsity.mean_log2_k(shares_TJ, np.array(KS), lengths.num_far_tokens_T).mean())

    exact_TK, exact_tokens = searched(None)
    numbers: dict[str, Any] = {"exact_tokens": exact_tokens, "exact_doublings": doublings(exact_TK)}
    for num_exact in arguments.screens:
        found_TK, tokens = searched(num_exact)
        pairs = zip(exact_TK[:, :TOP], found_TK[:, :TOP], strict=True)
        shared_T = [len({*one_K} & {*other_K}) for one_K, other_K in pairs]
        numbers[str(num_exact)] = {
            "recall": float(np.mean(shared_T)) / TOP,
            "top_1": float((exact_TK[:, 0] == found_TK[:, 0]).mean()),
            "doublings": doublings(found_TK),
            "tokens": tokens,
        }
    return numbers


def main(arguments: argparse.Namespace) -> None:
    """Measure the texts that are missing, and print the means of all."""
    rows = by_text.measured_texts(arguments, partial(measured, arguments))
    exact = pd.DataFrame(rows)[["exact_tokens", "exact_doublings"]].mean()
    for screen in arguments.screens:
        means = pd.DataFrame([row[str(screen)] for row in rows]).mean()
        sys.stdout.write(
            f"{len(rows)} texts of {arguments.length} tokens, --screen {screen}:"
            f" recall {means['recall']:.2f}, top 1 {means['top_1']:.2f},"
            f" {means['doublings'] - exact['exact_doublings']:+.2f} doublings,"
            f" {means['tokens'] / exact['exact_tokens']:.3f} of the exact search's forward tokens\n"
        )


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
