"""Evaluators, swaps and swapped contexts of the stages, against the naive witness."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from measured_documents import LONG, SHORT, chunk_of, measure, with_far, write_checkpoint, write_data
from naive_predictions import Case, log_probs, naive_divergences, naive_losses, stock_olmo
from olmo.model import OLMo
from sparsity_length.programs import evaluate_tokens, influential_tokens, loss_differences

from sparsity_length.results.read import Results

TARGET = ["document_id", "chunk_index", "target_position"]
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def models(make_olmo: Callable[..., OLMo]) -> dict[str, OLMo]:
    return {"run": make_olmo(seed=1), "other": make_olmo(seed=2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, models: dict[str, OLMo]) -> Path:
    folder = tmp_path_factory.mktemp("side_by_side")
    write_data(folder / "data")
    for name, model in models.items():
        write_checkpoint(folder / name, model)
    return folder


def in_the_chunk(row: object) -> int:
    return row.target_position - row.chunk_index * LONG


def test_an_evaluator_with_the_selector_s_weights_finds_its_very_numbers(
    folder: Path, models: dict[str, OLMo], tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "twin", models["run"])
    rules = ["--rules", "leave_one_out", "random", "greedy", "recency", "--k", "1", "3"]
    results = measure(influential_tokens, folder, *rules, "--results", str(tmp_path / "results"))
    words = ["--choices", str(results), "--results", str(results), "--checkpoints", str(tmp_path / "twin")]
    measure(evaluate_tokens, folder, *words)
    for artefact in ("sparse_context_losses", "dependency_sparsity"):
        rows = Results(results).frame(artefact)
        own, twin = (
            rows[rows["evaluator"] == evaluator].drop(columns="evaluator") for evaluator in ("run", "twin")
        )
        key = [name for name in (*TARGET, "rule", "distant_context", "k", "criterion") if name in rows]
        own, twin = (one.sort_values(key, ignore_index=True) for one in (own, twin))
        pd.testing.assert_frame_equal(own, twin, check_exact=True)


def test_foreign_contexts(folder: Path, models: dict[str, OLMo]) -> None:
    names = [str(folder / name) for name in models]
    rows = Results(measure(loss_differences, folder, "--checkpoints", *names)).frame("loss_differences")
    assert len(rows) == 2 * 12
    gains = rows["swapped_context_loss"] - rows["long_context_loss"]
    np.testing.assert_array_equal(rows["document_specific_gain"], gains)
    for row in rows.itertuples():
        place = in_the_chunk(row)
        own_L = chunk_of(row.document_id, row.chunk_index)
        long_case: Case = (own_L, range(place))
        foreign: Case = (with_far(own_L, chunk_of(row.document_id, row.chunk_index, 1), place), range(place))
        short: Case = (own_L, range(place - SHORT, place))
        stock = stock_olmo(models[row.model])
        found = [row.swapped_context_loss, row.short_context_loss, row.long_context_loss]
        losses = naive_losses(stock, place, [foreign, short, long_case])
        np.testing.assert_allclose(found, losses, atol=TOLERANCE)
        assert row.loss_difference == pytest.approx(losses[1] - losses[2], abs=TOLERANCE)
        found = [row.swapped_context_divergence, row.short_context_divergence]
        expected = naive_divergences(stock, place, long_case, [foreign, short])
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)
        (of_model,) = log_probs(stock, place, [long_case])
        entropy = -float((np.exp(of_model) * of_model).sum())
        assert row.long_context_entropy == pytest.approx(entropy, abs=TOLERANCE)
