"""How much of the gain from distant tokens do k chosen ones recover? A study of one text in one file.

    python analysis/examples/from_text_to_figure.py letter.txt HuggingFaceTB/SmolLM2-135M letter.png

The distant tokens of each prediction are ranked by how far the prediction moves without them
(`leave_one_out_divergence`), which never looks at the target token; by recency; and at random. The first k
stand alone beside the short context. Recovered is a ratio of sums over the predictions:

    (loss with the short context - loss with k tokens, too) / (loss with the short context - full loss)

One text proves little; it shows how to make a study. Intervals, other documents and a null baseline are in
pipeline/influential_tokens.py.
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from sparsity_length import influential_tokens, summary

KS = (1, 2, 4, 8, 16)
RULES = {"leave_one_out_divergence": "chosen", "recency": "recency", "random": "random"}


def recovered(text: str, model: str, rule: str, **lengths: Any) -> "pd.Series[float]":
    """The fraction of the gain that k tokens of a rule recover, by k."""
    # Left-out tokens are removed; every prediction of the text with enough distant tokens
    # counts.
    tokens = influential_tokens(text, model, rule=rule, k=KS, ablation="mask", **lengths)
    # A ratio of sums: single predictions whose gain is near 0 would rule a mean of ratios.
    return summary(tokens).query("criterion == 'loss'").set_index("k")["recovered_fraction"]


def main(text_file: str, model: str, figure_file: str, **lengths: Any) -> pd.DataFrame:
    """Measure the three rules, draw one line each, and give the table: one row per k, one column per rule."""
    text = Path(text_file).read_text(encoding="utf-8")
    table = pd.DataFrame({name: recovered(text, model, rule, **lengths) for rule, name in RULES.items()})
    figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
    table.plot(ax=ax, marker="o", logx=True, xticks=KS)
    ax.set_xticklabels([str(k) for k in KS])
    ax.axhline(1, color="grey", linestyle=":")
    ax.set(xlabel="k distant tokens beside the short context", ylabel="fraction of the gain recovered")
    figure.savefig(figure_file, dpi=200)
    return table


if __name__ == "__main__":
    sys.stdout.write(f"{main(*sys.argv[1:4]).round(2)}\n")
