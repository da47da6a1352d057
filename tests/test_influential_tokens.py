"""The stage influential_tokens: rows counted by hand, null and k* recomputed, losses against stock OLMo."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from measured_documents import (
    TARGET_POSITIONS,
    measure,
    write_checkpoint,
    write_data,
)
from olmo.model import OLMo
from sparsity_length.programs import influential_tokens

from sparsity_length.results.read import Results

ARTEFACTS = ["influential_tokens", "influences", "sparse_context_losses", "dependency_sparsity"]
RULES = {"leave_one_out", "random", "recency"}
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
    return {artefact: Results(folder / "results").frame(artefact) for artefact in ARTEFACTS}


def test_every_combination_has_its_rows(tables: Tables) -> None:
    counted = {artefact: len(frame) for artefact, frame in tables.items()}
    # 12 targets; 2 distant contexts, 3 rules, 5 ranks; 3 values of k, and 4 more of a control, up to 5, which
    # the first target's distant context is; 2 criteria
    assert counted == {
        "influential_tokens": 12 * 2 * 3 * 5,
        "influences": 12 * 2,
        "sparse_context_losses": 12 * 2 * (3 + 4 + 4),
        "dependency_sparsity": 12 * 3 * 2,
    }
    for frame in tables.values():
        assert set(frame[TARGET].itertuples(index=False, name=None)) == set(TARGET_POSITIONS)


def test_sparsity_agrees_with_a_recomputation_from_the_sparse_losses(tables: Tables) -> None:
    sparse = tables["sparse_context_losses"].query("distant_context == 'own'")
    found = tables["dependency_sparsity"].set_index([*TARGET, "rule", "criterion"]).sort_index()
    assert found["loss_difference"].notna().all()
    for key, rows in sparse.groupby([*TARGET, "rule"]):
        short = rows["short_context_loss"].iloc[0]
        long = rows["long_context_loss"].iloc[0]
        expected_divergence = rows["short_context_divergence"].iloc[0]
        of_criterion = {
            "loss": (short - long, short - rows["sparse_context_loss"]),
            "divergence": (expected_divergence, expected_divergence - rows["sparse_context_divergence"]),
        }
        for criterion, (gain, recovered) in of_criterion.items():
            reaching = rows["k"][recovered >= 0.9 * gain]
            row = found.loc[(*key, criterion)]
            k_star = row["k_90"]
            assert pd.isna(k_star) if gain < 0.1 or reaching.empty else k_star == reaching.min()
            assert row["is_censored"] == (gain >= 0.1 and reaching.empty)
            assert row["gain"] == gain and row["loss_difference"] == short - long
    # the table is worth the test only where it holds all three outcomes; by divergence, which is never below
    # 0, the gain is small nowhere
    for criterion, has_small_gains in (("loss", True), ("divergence", False)):
        of_criterion = found.xs(criterion, level="criterion")
        k_stars = of_criterion["k_90"]
        is_censored = of_criterion["is_censored"]
        assert k_stars.notna().any() and is_censored.any()
        assert (k_stars.isna() & ~is_censored).any() == has_small_gains


def test_shards_move_no_number(folder: Path, tables: Tables, tmp_path: Path) -> None:
    measure(influential_tokens, folder, "--results", str(tmp_path), "--documents-per-shard", "3")
    for artefact, expected in tables.items():
        found = Results(tmp_path).frame(artefact)
        # shard by shard the rows come in another order
        key = [
            name for name in (*TARGET, "rule", "distant_context", "rank", "k", "criterion") if name in found
        ]
        found, expected = (rows.sort_values(key, ignore_index=True) for rows in (found, expected))
        pd.testing.assert_frame_equal(found, expected, check_exact=True)
