"""Natural text beyond the trained length: harms and shares by hand, the rule."""

from pathlib import Path

import pandas as pd
import pytest
from written_results import write_tables

from sparsity_length.figures import beyond

ZEROS = dict.fromkeys(
    [
        "chunk_index",
        "target_token_id",
        "num_long_context_tokens",
        "short_context_loss",
        "loss_difference",
        "swapped_context_loss",
    ],
    0,
)


def texts_of(folder: Path, harms: dict[str, list[float]]) -> pd.DataFrame:
    """Texts a, b, c, … of two last targets, whose loss with the last part alone is 3 and 5 nats.

    `within` has two earlier targets, too, which no other run has.
    """
    losses = {beyond.WITHIN: [0.0] * 9, **{beyond.SCHEMES[scheme]: harm for scheme, harm in harms.items()}}
    for results, harm in losses.items():
        rows = [
            {
                **ZEROS,
                "document_id": text,
                "target_position": position,
                "long_context_loss": loss + more,
                "document_specific_gain": position / 10 - more,
            }
            for text, more in zip("abcdefghi", harm, strict=False)
            for position, loss in ((1, 90.0), (2, 90.0), (8, 3.0), (9, 5.0))
            if position > 7 or results == beyond.WITHIN
        ]
        write_tables(folder / results, "loss_differences", "m", {}, {"loss_differences": rows})
    return beyond.of_texts(folder)


def test_what_a_scheme_repairs_by_hand(tmp_path: Path) -> None:
    texts = texts_of(
        tmp_path,
        {
            "plain": [1.0, 3.0, 2.0],
            "YaRN × 2": [0.25, 0.75, 0.5],
            "stair positions": [2.0, 0.0],  # of c, stairs are not there: it does not count
        },
    )
    assert texts.index.tolist() == ["a", "b"] and texts["within"].tolist() == [4, 4]
    assert texts["gain YaRN × 2"].tolist() == pytest.approx([0.85 - 0.25, 0.85 - 0.75])
    harm_of = beyond.harms(texts)
    assert harm_of["plain"].tolist() == pytest.approx([1, 3])
    assert beyond.repaired(harm_of, "YaRN × 2").estimate == pytest.approx(1 - 1 / 4)
    assert beyond.repaired(harm_of, "stair positions").estimate == pytest.approx(1 - 2 / 4)


@pytest.mark.parametrize(
    ("plain", "yarn", "word"),
    [
        ([1.0, 1.2, 0.8, 1.1], [0.2, 0.2, 0.1, 0.2], "supported"),
        ([1.0, 1.2, 0.8, 1.1], [0.9, 1.2, 0.8, 1.0], "refuted"),
        ([1.0, 1.2, 0.8, 1.1], [0.2, 0.9, 0.1, 1.0], "inconclusive"),
        ([1.0, -1.2, 0.8, -1.1], [0.0, 0.0, 0.0, 0.0], "inconclusive"),  # plain does no harm
    ],
)
def test_the_rule_of_the_plan(tmp_path: Path, plain: list[float], yarn: list[float], word: str) -> None:
    texts = texts_of(tmp_path, {"plain": plain, "YaRN × 2": yarn, "stair positions": plain})
    assert beyond.verdict(beyond.harms(texts), "YaRN × 2") == word
