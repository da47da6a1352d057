"""The stage loss_differences: its rows counted by hand, its losses against stock OLMo's own forward pass."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from measured_documents import (
    DOCUMENTS,
    LENGTH_LOSSES,
    LONG,
    TARGET_POSITIONS,
    TARGETS,
    chunk_of,
    measure,
    write_checkpoint,
    write_data,
)
from naive_predictions import behind, naive_divergences, naive_losses, stock_olmo
from olmo.model import OLMo

from pipeline import loss_differences
from pipeline.loss_differences import default_context_lengths
from pipeline.results.read import read_artefact


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_olmo: Callable[..., OLMo]) -> Path:
    folder = tmp_path_factory.mktemp("loss_differences")
    write_data(folder / "data")
    write_checkpoint(folder / "run", make_olmo(seed=1))
    measure(loss_differences, folder, "--documents-per-shard", "2")
    return folder


@pytest.fixture
def rows(folder: Path) -> pd.DataFrame:
    return read_artefact(folder / "results", "loss_differences")


def test_a_row_for_each_target_in_the_coordinates_of_its_document(rows: pd.DataFrame) -> None:
    assert rows["model"].unique().tolist() == ["run"]
    names = rows[["document_id", "chunk_index", "target_position"]]
    assert list(names.itertuples(index=False, name=None)) == TARGET_POSITIONS
    assert rows["num_long_context_tokens"].tolist() == [9, 10, 11] * 4
    assert rows["target_token_id"].tolist() == [
        int(DOCUMENTS[document_id][position]) for document_id, _, position in TARGET_POSITIONS
    ]


def test_loss_and_entropy_of_the_long_context_are_stock_olmo_s(
    rows: pd.DataFrame, make_olmo: Callable[..., OLMo]
) -> None:
    model = make_olmo(seed=1)
    for row in rows.itertuples():
        tokens = torch.as_tensor(DOCUMENTS[row.document_id].astype(np.int64))
        with torch.inference_mode():
            logits_V = model(tokens[None, row.chunk_index * LONG : row.target_position]).logits[0, -1]
        log_probs_V = logits_V.double().log_softmax(-1)
        assert row.long_context_loss == pytest.approx(-float(log_probs_V[row.target_token_id]), abs=1e-5)
        entropy = -float((log_probs_V.exp() * log_probs_V).sum())
        assert row.long_context_entropy == pytest.approx(entropy, abs=1e-5)


@pytest.mark.parametrize("bos_token_ids", [(), (7, 3)])
def test_every_mean_computed_naively(
    bos_token_ids: tuple[int, ...], tmp_path: Path, make_olmo: Callable[..., OLMo]
) -> None:
    assert default_context_lengths(100) == [8, 12, 16, 24, 32, 48, 64, 96, 100]
    write_data(tmp_path / "data", bos_token_ids=bos_token_ids)
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    rows = read_artefact(measure(loss_differences, tmp_path, *LENGTH_LOSSES), "length_losses")
    stock = behind(stock_olmo(make_olmo(seed=1)), bos_token_ids)
    assert len(rows) == 4 * 2 and set(rows["num_targets"]) == {3}
    for row in rows.itertuples():
        chunk_L = chunk_of(row.document_id, row.chunk_index)
        losses, divergences = [], []
        for target in range(LONG - TARGETS, LONG):
            window = [(chunk_L, range(target - row.context_length, target))]
            losses += naive_losses(stock, target, window)
            divergences += naive_divergences(stock, target, (chunk_L, range(target)), window)
        assert row.mean_loss == pytest.approx(np.mean(losses), abs=2e-5)
        assert row.mean_divergence == pytest.approx(np.mean(divergences), abs=2e-5)
        assert row.losses.tolist() == pytest.approx(losses, abs=2e-5)
        assert row.divergences.tolist() == pytest.approx(divergences, abs=2e-5)
