"""Where influential tokens are: relations by hand and by loop, shares of planted selections, foreign data."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from explorable_results import KS, LONG, SHORT, write_explorable

from analysis.read import TARGET, MeasuredText
from analysis.tokens import places
from analysis.tokens.places import (
    AFTER_PREDECESSOR,
    BESIDE_COPY,
    COPY,
    INDUCTION,
    OTHER,
    PREDECESSOR,
    RELATIONS,
    distance_bins,
    relations,
)
from pipeline.cli import InputError
from pipeline.results.read import read_artefact
from pipeline.results.schemas import OTHER_DOCUMENT, OWN

TEXTS = [
    "The old house of Mary stood by the old house of John, and it had 42 seats in 1990. " * 4,
    "A river runs north; the river runs past Rome and the river runs on, 7 days or 70. " * 4,
    "No one knew why the lamp was lit, and no one knew who had lit the lamp at night. " * 4,
]


def names(far: list[int], predecessor: int, target: int) -> list[str]:
    return [RELATIONS[index] for index in relations(np.array(far), predecessor, target)]


def test_relations_by_example() -> None:
    # The target is 5, after 4.
    assert names([4, 5, 9, 5, 4, 8, 7], 4, 5) == [
        PREDECESSOR,
        INDUCTION,
        BESIDE_COPY,
        COPY,
        PREDECESSOR,
        AFTER_PREDECESSOR,
        OTHER,
    ]
    assert names([5, 5, 5], 5, 5) == [COPY, INDUCTION, INDUCTION]
    assert names([9, 9, 9], 4, 5) == [OTHER] * 3


def test_relations_are_the_literal_rule_on_random_tokens() -> None:
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(100):
        far, p, t = generator.integers(0, 6, 20).tolist(), *generator.integers(0, 6, 2).tolist()
        for i, name in enumerate(names(far, p, t)):
            before = far[i - 1] if i else None
            after = far[i + 1] if i + 1 < len(far) else None
            if far[i] == t:
                expected = INDUCTION if before == p else COPY
            elif before == p:
                expected = AFTER_PREDECESSOR
            elif far[i] == p:
                expected = PREDECESSOR
            else:
                expected = BESIDE_COPY if t in (before, after) else OTHER
            assert name == expected
            seen.add(name)
    assert seen == set(RELATIONS)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_explorable(tmp_path_factory.mktemp("places"), TEXTS)[0]


@pytest.fixture(scope="module")
def text(results: Path) -> MeasuredText:
    return MeasuredText.open(results, "influential_tokens")


@pytest.fixture(scope="module")
def tokens(results: Path, text: MeasuredText) -> pd.DataFrame:
    """Selections of random places, the null's tokens those of the document that is the null."""
    rows = read_artefact(results, "influential_tokens")
    chunks = {(chunk.document_id, chunk.chunk_index): chunk for _, chunk in text.chunks()}

    def token(row: pd.Series) -> int:
        chunk = chunks[row["document_id"], row["chunk_index"]]
        ids = chunk.token_ids_L if row["far_context"] == OWN else chunk.null_token_ids_L
        return int(ids[row["context_position"] - chunk.start])

    assert (
        rows.query("far_context == 'own'").apply(token, axis=1)
        == rows.query("far_context == 'own'")["context_token_id"]
    ).all()
    return rows.assign(context_token_id=rows.apply(token, axis=1))


def test_random_places_have_the_shares_of_what_is_available(tokens: pd.DataFrame, text: MeasuredText) -> None:
    """All far tokens chosen: chosen and available must be one number, for every relation and distance."""
    every = []
    for _, chunk in text.chunks():
        for position in text.targets_of(chunk):
            place = position - chunk.start
            for far_context, ids in ((OWN, chunk.token_ids_L), (OTHER_DOCUMENT, chunk.null_token_ids_L)):
                far = np.arange(place - SHORT)
                every.append(
                    pd.DataFrame(
                        {
                            "model": "m",
                            "document_id": chunk.document_id,
                            "chunk_index": chunk.chunk_index,
                            "target_position": position,
                            "rule": "all",
                            "far_context": far_context,
                            "rank": far + 1,
                            "context_position": chunk.start + far,
                            "distance": place - far,
                            "context_token_id": ids[far],
                        }
                    )
                )
    selected = places.selections(pd.concat(every, ignore_index=True), text)
    bins = distance_bins(SHORT, LONG)
    available = places.available_places(selected, text, bins)
    assert available[RELATIONS].sum(axis=1).to_numpy() == pytest.approx(1)
    assert available[bins[:-1]].sum(axis=1).to_numpy() == pytest.approx(1)
    for table in (
        places.relation_shares(selected, available, [LONG]),
        places.distance_shares(selected, available, [LONG], bins),
    ):
        assert table["chosen"].to_numpy() == pytest.approx(table["available"].to_numpy())
        assert table["chosen_beyond_available_high"].to_numpy() == pytest.approx(0)
        assert table.groupby("far_context")["chosen"].sum().tolist() == pytest.approx([1, 1])


def test_shares_by_hand(tokens: pd.DataFrame, text: MeasuredText) -> None:
    tokens = tokens.query("model == 'other' and rule == 'nearest'")
    selected = places.selections(tokens, text)
    assert len(selected) == len(tokens)
    bins = distance_bins(SHORT, LONG)
    available = places.available_places(selected, text, bins)
    table = places.relation_shares(selected, available, KS)
    key = {"model": "other", "rule": "nearest", "far_context": OTHER_DOCUMENT}
    rows = selected[(selected[list(key)] == pd.Series(key)).all(axis=1)]
    for k in KS:
        first = rows[rows["rank"] <= k]
        for relation in RELATIONS:
            one = table[(table[list(key)] == pd.Series(key)).all(axis=1)]
            one = one[(one["k"] == k) & (one["relation"] == relation)]
            assert one["chosen"].tolist() == pytest.approx([(first["relation"] == relation).mean()])
            assert one["num_targets"].tolist() == [len(first[TARGET].drop_duplicates())]


def test_tokens_of_other_data_are_refused(results: Path, tokens: pd.DataFrame, text: MeasuredText) -> None:
    wrong = tokens.assign(context_token_id=tokens["context_token_id"] + 1)
    with pytest.raises(InputError, match="are not those of the data"):
        places.selections(wrong, text)
    with pytest.raises(InputError, match="2 chunks that the data in .* does not hold"):
        ids = tokens["document_id"]
        places.selections(tokens.assign(document_id=ids.replace(ids.iloc[0], "f" * 16)), text)
