"""The verdict on few tokens in a pretrained model, on targets whose recovered fractions are planted."""

import pandas as pd
import pytest

from sparsity_length.figures.recovered_loss import NULL, amounts_beside, paper_verdict

SELECTED = "leave_one_out_divergence"
RECENCY = "recency"
FEW = 16


def planted(selected: float, recency: float) -> pd.DataFrame:
    """Losses of 24 texts of 8 targets; targets of a text gain 0.5 to 2 nats by all distant tokens."""
    rows = []
    for text in range(24):
        for target in range(8):
            gain = 0.5 + 1.5 * (text * 8 + target) / 191
            for rule, share in ((SELECTED, selected), (RECENCY, recency)):
                rows.append(
                    [
                        "m",
                        f"{text:02}",
                        0,
                        960 + 8 * target,
                        rule,
                        "own",
                        FEW,
                        3.0 - share * gain,
                        3.0,
                        3.0 - gain,
                    ]
                )
    columns = ["model", "document_id", "chunk_index", "target_position", "rule", "distant_context", "k"]
    return pd.DataFrame(
        rows, columns=[*columns, "sparse_context_loss", "short_context_loss", "long_context_loss"]
    )


@pytest.mark.parametrize(
    ("selected", "recency", "expected"),
    [(0.7, 0.4, "supported"), (0.4, 0.1, "inconclusive"), (0.7, 0.65, "refuted"), (0.3, 0.35, "refuted")],
)
def test_the_verdict_follows_the_planted_fractions(selected: float, recency: float, expected: str) -> None:
    verdict, share, lead = paper_verdict(planted(selected, recency))
    assert verdict == expected
    assert (share.estimate, lead.estimate) == pytest.approx((selected, selected - recency))


def test_the_null_baseline_is_subtracted_where_there_is_one() -> None:
    """It recovers 10% in the first three texts, all else is planted to recover 70%."""
    own = planted(0.7, 0.4)
    null = planted(0.1, 0.4).query("document_id < '03'").assign(distant_context="other_document")
    null["short_context_loss"] += 1.0  # of its own baseline, which does not count for the gain
    null["sparse_context_loss"] += 1.0
    targets = amounts_beside(pd.concat([own, null]), NULL)
    assert targets["document_id"].nunique() == 3
    assert targets["lead"].sum() / targets["gain"].sum() == pytest.approx(0.6)
