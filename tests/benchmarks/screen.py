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
from sparsity_length.measuring import contexts, far_context, rules, settings, sparsity
from sparsity_length.models import given
from sparsity_length.text.tokenizer import TokenizedText

TOP = 16
KS = [1, 2, 4, 8, 16, 32, 64, 128]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    by_text.add_flags(parser)
    parser.add_argument("--short", type=int, default=32, help="near tokens")
    parser.add_argument("--screens", type=int, nargs="+", default=[16, 32], help="N: tokens left out exactly")


def measured(
    arguments: argparse.Namespace, num_exact: int | None, name: str, text: TokenizedText
) -> dict[str, Any]:
    """The ranking of each target's distant tokens by the KL, [T, 128], its `mean_log2_k`, and its cost."""
    text_L = text.token_ids_N[: arguments.length]
    found = given.GivenModel(name)
    model = found.ready(len(text_L), [text_L], found.tokenizer(), text.bos_token_ids)
    lengths = settings.ContextLengths(arguments.short, len(text_L), 64, 8)
    far = far_context.FarContext(
        model, lengths, contexts.Batching.for_model(model), text_L, text_L, screen=num_exact
    )
    ranking_TK = rules.ranked(far.necessity.divergences, KS[-1])
    tokens = model.num_rows_run
    left_TJ = far_context.sparse_contexts(far, {"rule": (ranking_TK, KS)})["rule"].divergences[..., 0]
    shares_TJ = 1 - left_TJ / far.short.divergences[:, None]
    doublings_T = sparsity.mean_log2_k(shares_TJ, np.array(KS), lengths.num_far_tokens_T)
    return {"ranking": ranking_TK.tolist(), "doublings": float(doublings_T.mean()), "tokens": tokens}


def main(arguments: argparse.Namespace) -> None:
    """Measure the texts that are missing, and print the means of all."""
    exact, *screens = (
        pd.DataFrame(by_text.measured_texts(arguments, partial(measured, arguments, screen), screen=screen))
        for screen in (None, *arguments.screens)
    )
    for screen, found in zip(arguments.screens, screens, strict=True):
        pairs = [
            (of_exact[:TOP], of_found[:TOP])
            for of_text in zip(exact["ranking"], found["ranking"], strict=True)
            for of_exact, of_found in zip(*of_text, strict=True)
        ]
        recall = np.mean([len({*one} & {*other}) / TOP for one, other in pairs])
        top_1 = np.mean([one[0] == other[0] for one, other in pairs])
        doublings = found["doublings"].mean() - exact["doublings"].mean()
        sys.stdout.write(
            f"{len(found)} texts of {arguments.length} tokens, --screen {screen}:"
            f" recall {recall:.2f}, top 1 {top_1:.2f}, {doublings:+.2f} doublings,"
            f" {found['tokens'].sum() / exact['tokens'].sum():.3f} of the exact search's forward tokens\n"
        )


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
