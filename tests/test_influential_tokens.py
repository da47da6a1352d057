"""The stage influential_tokens: rows counted by hand, null and k* recomputed, losses against stock OLMo."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from measured_documents import (
    LONG,
    SHORT,
    TARGET_POSITIONS,
    chunk_of,
    measure,
    write_checkpoint,
    write_data,
)
from olmo.model import OLMo

from pipeline import influential_tokens
from pipeline.cli import InputError
from pipeline.results.read import read_artefact

ARTEFACTS = ["influential_tokens", "influences", "sparse_context_losses", "dependency_sparsity"]
RULES = {"leave_one_out", "random", "nearest"}
TARGET = ["document_id", "chunk_index", "target_position"]
Tables = dict[str, pd.DataFrame]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_olmo: Callable[..., OLMo]) -> Path:
    folder = tmp_path_factory.mktemp("influential_tokens")
    write_data(folder / "data")
    write_checkpoint(folder / "run", make_olmo(seed=1))
    measure(influential_tokens, folder)
    return folder


@pytest.fixture(scope="module")
def tables(folder: Path) -> Tables:
    return {artefact: read_artefact(folder / "results", artefact) for artefact in ARTEFACTS}


def test_every_combination_has_its_rows(tables: Tables) -> None:
    counted = {artefact: len(frame) for artefact, frame in tables.items()}
    # 12 targets; 2 far contexts, 3 rules, 5 ranks; 3 values of k, and 4 more of a control, up to 5, which
    # the first target's far context is; 2 criteria
    assert counted == {
        "influential_tokens": 12 * 2 * 3 * 5,
        "influences": 12 * 2,
        "sparse_context_losses": 12 * 2 * (3 + 4 + 4),
        "dependency_sparsity": 12 * 3 * 2,
    }
    for frame in tables.values():
        assert set(frame[TARGET].itertuples(index=False, name=None)) == set(TARGET_POSITIONS)
    for artefact, column, values in (
        ("influential_tokens", "rank", {1, 2, 3, 4, 5}),
        ("sparse_context_losses", "k", {1, 2, 4, 5}),
    ):
        key = [*TARGET, "rule", "far_context", column]
        assert not tables[artefact].duplicated(key).any()
        assert set(tables[artefact][column]) == values
        assert set(tables[artefact]["rule"]) == RULES
        assert set(tables[artefact]["far_context"]) == {"own", "other_document"}
    sparse = tables["sparse_context_losses"]
    assert set(sparse.query("rule == 'leave_one_out'")["k"]) == {1, 2, 5}
    assert set(sparse["judge"]) == {"run"}
    assert sparse.query("far_context == 'own'")["null_kind"].isna().all()
    assert set(sparse.query("far_context != 'own'")["null_kind"]) == {"selection"}
    assert sparse[["background_loss", "background_divergence"]].isna().all(axis=None)


def test_a_screen_is_a_setting_and_leaves_no_table_of_every_influence(folder: Path, tmp_path: Path) -> None:
    # The first target has 5 far tokens: 2 pairs, of which 2 are split, and the nearest; 5 blocks are all.
    words = ["--rules", "leave_one_out", "leave_one_out_divergence", "--k", "1", "2", "--screen"]
    for screen in "45":
        measure(influential_tokens, folder, *words, screen, "--results", str(tmp_path / screen))
    with pytest.raises(InputError, match="screen was 4, now None"):
        measure(influential_tokens, folder, *words, "5", "--results", str(tmp_path / "4"))
    with pytest.raises(InputError, match="no 'influences'"):
        read_artefact(tmp_path / "4", "influences")
    assert len(read_artefact(tmp_path / "5", "influences")) == 12 * 2
    screened, whole = (
        {name: read_artefact(tmp_path / of, name) for name in ("influential_tokens", "sparse_context_losses")}
        for of in ("4", "5")
    )
    influences = [tables["influential_tokens"]["influence"] for tables in (screened, whole)]
    assert 0 < influences[0].isna().sum() < 12 * 2 * 2 * 2 and not influences[1].isna().any()
    assert set(screened["sparse_context_losses"]["k"]) == {1, 2, 4, 5}
    assert set(whole["sparse_context_losses"]["k"]) == {1, 2}


def test_selected_tokens_lie_in_the_far_context_of_their_document(tables: Tables) -> None:
    rows = tables["influential_tokens"]
    assert rows["distance"].equals(rows["target_position"] - rows["context_position"])
    assert set(rows[rows["chunk_index"] == 1]["context_position"]) <= set(range(12, 19))
    # the null holds the other document's token at that place of its chunk
    for row in rows.itertuples():
        chunk = chunk_of(row.document_id, row.chunk_index, int(row.far_context != "own"))
        assert row.context_token_id == chunk[row.context_position - row.chunk_index * LONG]


def test_each_rule_ranks_by_its_own_measure(tables: Tables) -> None:
    rows = tables["influential_tokens"]
    nearest, random = rows.query("rule == 'nearest'"), rows.query("rule == 'random'")
    assert nearest["distance"].equals((SHORT + nearest["rank"]).astype("int32"))
    places = random.pivot_table(index=[*TARGET, "rank"], columns="far_context", values="context_position")
    assert places["own"].equals(places["other_document"].rename("own")), "random draws the same in the null"
    lists = tables["influences"].set_index([*TARGET, "far_context"])["influences"]
    of_largest = rows.query("rule == 'leave_one_out'").sort_values("rank")
    for key, ranked in of_largest.groupby([*TARGET, "far_context"]):
        assert ranked["influence"].tolist() == np.sort(lists[key])[::-1][:5].tolist(), key
    for row in rows.itertuples():
        influences = lists[row.document_id, row.chunk_index, row.target_position, row.far_context]
        assert influences[row.context_position - row.chunk_index * LONG] == row.influence


def test_sparsity_agrees_with_a_recomputation_from_the_sparse_losses(tables: Tables) -> None:
    sparse = tables["sparse_context_losses"].query("far_context == 'own'")
    found = tables["dependency_sparsity"].set_index([*TARGET, "rule", "criterion"]).sort_index()
    assert found["loss_difference"].notna().all()
    for key, rows in sparse.groupby([*TARGET, "rule"]):
        short, long = rows["short_context_loss"].iloc[0], rows["long_context_loss"].iloc[0]
        expected_divergence = rows["short_context_divergence"].iloc[0]
        of_criterion = {
            "loss": (short - long, short - rows["sparse_context_loss"]),
            "divergence": (expected_divergence, expected_divergence - rows["sparse_context_divergence"]),
        }
        for criterion, (gain, recovered) in of_criterion.items():
            reaching = rows["k"][recovered >= 0.9 * gain]
            row = found.loc[(*key, criterion)]
            k_star = row["dependency_sparsity"]
            assert pd.isna(k_star) if gain < 0.1 or reaching.empty else k_star == reaching.min()
            assert row["is_censored"] == (gain >= 0.1 and reaching.empty)
            assert row["gain"] == gain and row["loss_difference"] == short - long
    # the table is worth the test only where it holds all three outcomes; by divergence, which is never below
    # 0, the gain is small nowhere
    for criterion, has_small_gains in (("loss", True), ("divergence", False)):
        of_criterion = found.xs(criterion, level="criterion")
        k_stars, is_censored = of_criterion["dependency_sparsity"], of_criterion["is_censored"]
        assert k_stars.notna().any() and is_censored.any()
        assert (k_stars.isna() & ~is_censored).any() == has_small_gains


def test_the_minimum_context_is_the_short_one_and_the_nearest_tokens_that_suffice(tables: Tables) -> None:
    wide = tables["dependency_sparsity"].set_index([*TARGET, "criterion", "rule"])
    of_nearest = wide.xs("nearest", level="rule")["dependency_sparsity"]
    assert of_nearest.notna().any() and of_nearest.isna().any()
    for rule in RULES:
        shortest = wide.xs(rule, level="rule")["minimum_context_length"]
        pd.testing.assert_series_equal(shortest, of_nearest + SHORT, check_names=False)


def test_neither_shards_nor_batches_move_a_number(folder: Path, tables: Tables, tmp_path: Path) -> None:
    flags = ["--documents-per-shard", "3", "--memory-budget", "1e-6"]
    measure(influential_tokens, folder, "--results", str(tmp_path), *flags)
    for artefact, expected in tables.items():
        found = read_artefact(tmp_path, artefact)
        # shard by shard the rows come in another order
        key = [name for name in (*TARGET, "rule", "far_context", "rank", "k", "criterion") if name in found]
        found, expected = (rows.sort_values(key, ignore_index=True) for rows in (found, expected))
        pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_a_stride_measures_some_of_the_targets_and_moves_no_number(
    folder: Path, tables: Tables, tmp_path: Path
) -> None:
    measure(
        influential_tokens, folder, "--results", str(tmp_path), "--target-stride", "2", "--k", "1", "2", "5"
    )
    for artefact, all_targets in tables.items():
        found = read_artefact(tmp_path, artefact)
        # of the targets 9, 10 and 11 of each chunk, the last and every second before it
        expected = all_targets[all_targets["target_position"] % 12 != 10]
        found, expected = (
            rows[rows["rule"] != "random"] if "rule" in rows else rows for rows in (found, expected)
        )
        key = [name for name in (*TARGET, "rule", "far_context", "rank", "k", "criterion") if name in found]
        found, expected = (rows.sort_values(key, ignore_index=True) for rows in (found, expected))
        pd.testing.assert_frame_equal(found, expected, rtol=1e-4, atol=1e-5)


def test_the_seed_moves_random_and_nothing_else(folder: Path, tables: Tables, tmp_path: Path) -> None:
    # k is sorted and counted once
    measure(influential_tokens, folder, "--results", str(tmp_path), "--seed", "1", "--k", "1", "2", "5")
    places = [
        frame.groupby("rule")["context_position"].apply(list)
        for frame in (tables["influential_tokens"], read_artefact(tmp_path, "influential_tokens"))
    ]
    assert {rule for rule in RULES if places[0][rule] != places[1][rule]} == {"random"}
