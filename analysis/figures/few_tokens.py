"""Do 16 of some 980 distant tokens predict nearly as well as all, in a pretrained model? Table and verdict.

Question, rule of the verdict and power were written down before anything was measured: analysis/LOG.md,
2026-11-27. Rows are those of sparse_context_losses of one model, which evaluated its own selection under
`mask`.
"""

from collections.abc import Hashable
from typing import Any

import pandas as pd

from analysis.read import TARGET, interval_columns, interval_over_documents, summarized
from pipeline.results.schemas import OWN

SELECTED, RECENCY, RANDOM = "leave_one_out_divergence", "recency", "random"
FEW = 16
"""The tokens that the verdict is about."""
LEAST_SHARE = 0.5
LEAST_LEAD = 0.1
"""The selected tokens recover more than this fraction of the gain, and so much more than recency."""


def recovered_fractions(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """What k tokens recover of the gain in loss of all distant tokens, by selection rule and k.

    Returns:
        rule, distant_context (where the tokens were selected), k, num_targets, num_documents, then with
        intervals over documents recovered (a ratio of sums over targets) and lead: the same less what as many
        of the most recent distant tokens recover of the same targets.
    """
    rows = sparse_context_losses.assign(
        gain=lambda rows: rows["short_context_loss"] - rows["long_context_loss"],
        nats=lambda rows: rows["short_context_loss"] - rows["sparse_context_loss"],
    )
    is_recency = (rows["rule"] == RECENCY) & (rows["distant_context"] == OWN)
    recency = rows.loc[is_recency, [*TARGET, "k", "nats"]]
    rows = rows.merge(recency, "left", [*TARGET, "k"], suffixes=("", "_recency"), validate="many_to_one")

    def numbers(targets: pd.DataFrame) -> dict[Hashable, Any]:
        ids = targets["document_id"]
        recovered = interval_over_documents(ids, targets["nats"], targets["gain"])
        lead = interval_over_documents(ids, targets["nats"] - targets["nats_recency"], targets["gain"])
        return interval_columns("recovered", recovered) | interval_columns("lead", lead)

    return summarized(rows, ["rule", "distant_context", "k"], numbers)


def row_of(table: pd.DataFrame, rule: str, k: int, distant_context: str = OWN) -> pd.Series:
    """One row of `recovered_fractions`."""
    is_row = (table["rule"] == rule) & (table["k"] == k) & (table["distant_context"] == distant_context)
    return table[is_row].iloc[0]


def verdict(table: pd.DataFrame) -> str:
    """By the rule of the plan: yes, in part, or no."""
    selected = row_of(table, SELECTED, FEW)
    if selected["recovered_low"] > LEAST_SHARE and selected["lead_low"] > LEAST_LEAD:
        return "yes"
    return "in part" if selected["lead_low"] > 0 else "no"
