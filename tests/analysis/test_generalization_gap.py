"""The slope of the gap: by formulas, and planted in any results."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sparsity_length.analysis.run_notebooks import NOTEBOOKS, execute
from statsmodels.regression.linear_model import WLS
from written_results import write_tables

from sparsity_length.cli import InputError
from sparsity_length.figures import generalization_gap, slopes

SHORT = [f"pose{seed}" for seed in range(4)]
LONG = [f"long{seed}" for seed in range(4, 8)]
JUDGES = ["judge0", "judge1"]


def test_slopes_errors_and_freedom_are_those_of_the_formulas() -> None:
    """Two evaluators' sparsity, controls (one of a single text, one the others' sum), weights."""
    generator = np.random.default_rng(5)
    texts = generator.permutation(np.repeat(np.arange(12), generator.integers(1, 8, 12)))
    sparsity = generator.normal(size=(len(texts), 1)) + 0.4 * generator.normal(size=(len(texts), 2))
    first = sparsity[:, 0] + generator.normal(size=len(texts))
    controls = np.column_stack([first, texts == 3, first + (texts == 3)])
    losses = pd.DataFrame(generator.normal(size=(len(texts), 2)))
    weights = generator.uniform(0.5, 2, len(texts))
    found = slopes.Design(sparsity, controls, texts, weights).least_squares(losses)
    plain = np.column_stack([sparsity.mean(axis=1), np.ones(len(texts)), controls[:, :2]])
    design = plain * np.sqrt(weights)[:, None]
    bread = np.linalg.inv(design.T @ design)
    left = np.eye(len(texts)) - design @ bread @ design.T
    rows = []
    for text in np.unique(texts):
        of_text = np.flatnonzero(texts == text)
        sizes, vectors = np.linalg.eigh(left[np.ix_(of_text, of_text)])
        roots = np.where(sizes > 1e-9, np.abs(sizes) ** -0.5, 0)
        rows.append(((design @ bread)[of_text, 0] @ vectors * roots) @ vectors.T @ left[of_text])
    scores = np.array(rows) @ (losses.to_numpy() * np.sqrt(weights)[:, None])
    inner = np.array(rows) @ np.array(rows).T
    assert found.covariance_MM == pytest.approx(scores.T @ scores)
    assert found.degrees_of_freedom == pytest.approx(np.trace(inner) ** 2 / (inner**2).sum())
    assert found.slopes_M[0] == pytest.approx(WLS(losses[0], plain, weights).fit().params.iloc[0])


def test_the_spread_of_seeds_beyond_that_of_texts_is_added() -> None:
    found = slopes.Slopes(["a", "b", "c", "d"], np.array([1.0, 3.0, 0.0, 0.0]), np.eye(4) / 2, 50.0)
    row = slopes.contrast(found, ["a", "b"], ["c", "d"])
    assert (row["slope"], row["pair_slopes"]) == (2.0, [1.0, 1.0, 3.0, 3.0])
    # texts: 4 · 0.5 / 4; the seeds a and b: S² = 2, of which texts explain 0.5; c and d agree by chance
    assert (row["text_error"] ** 2, row["seed_error"] ** 2) == pytest.approx((0.5, (2 - 0.5) / 2))
    assert row["degrees_of_freedom"] == pytest.approx(1.25**2 / (0.5**2 / 50 + (2 / 2) ** 2))
    negative_control = slopes.contrast(found, ["c"], ["a", "b"])  # c is taken to differ as a and b do
    assert negative_control["seed_error"] ** 2 == pytest.approx((2 - 0.5) * (1 + 1 / 2))


def write_results(folder: Path) -> None:
    """Results of 30 texts: tokens chosen by two seeds, evaluated by two others; a slope of 0.1 is planted."""
    generator = np.random.default_rng(1)
    texts = np.repeat(np.arange(30), 8)
    sparsity = 4 + 0.7 * generator.normal(size=30)[texts] + 1.2 * generator.normal(size=240)
    stake = 0.1 + np.exp(-1 - 0.3 * (sparsity - 4) + 0.8 * generator.normal(size=240))
    keys = pd.DataFrame({"document_id": texts.astype(str), "target_position": range(240), "chunk_index": 0})
    for model in [*SHORT, *LONG, *JUDGES]:
        gap = 0.1 * (sparsity - 4) * (model in SHORT)
        losses = keys.assign(
            target_token_id=7,
            num_long_context_tokens=generator.integers(224, 256, 240),
            loss_difference=stake + np.sqrt(stake) * generator.normal(size=240),
            short_context_loss=1.0,
            long_context_loss=2 + np.log(stake) ** 2 + gap + generator.normal(0, 0.3, 240),
        )
        tables = {"loss_differences": losses.to_dict("records")}
        write_tables(folder, "loss_differences", model, {}, tables)
    of_evaluators = [
        keys.assign(
            rule="leave_one_out_divergence",
            evaluator=evaluator,
            criterion="divergence",
            gain=stake,
            loss_difference=0.5,
            is_censored=False,
            mean_log2_k=np.where(stake < 0.15, None, sparsity + 0.3 * generator.normal(size=240)),
        )
        for evaluator in [*JUDGES, "chooser0"]
    ]
    tables = {"dependency_sparsity": pd.concat(of_evaluators).to_dict("records")}
    write_tables(folder, "influential_tokens", "chooser0+chooser1", {}, tables)


@pytest.mark.slow
def test_any_results_show_their_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook's functions, then the notebook: the planted slope is found, its figure can be read."""
    results = tmp_path / "results"
    write_results(results)
    longs = [*JUDGES, *LONG, "nobody"]
    targets, trainings, others = generalization_gap.gap_targets(results, None, longs, SHORT)
    assert others == LONG and trainings == {name: [name] for name in SHORT}
    assert not {"source", "log_token_count"} & set(targets)
    row = generalization_gap.gap_slope(targets, short=SHORT, long=LONG)
    assert row["slope"] == pytest.approx(0.1, abs=0.05) and row["num_left_out"] > 0
    assert len(row["pair_slopes"]) == 16 and row["spearman"] > 0.5
    for long, short in ((JUDGES, SHORT), (LONG, [])):
        with pytest.raises(InputError, match="the gap needs a model"):
            generalization_gap.compared_models(results, long, short)
    data = SimpleNamespace(
        evaluation_documents=lambda: [SimpleNamespace(document_id=str(text), url=None) for text in range(30)]
    )
    monkeypatch.setattr(generalization_gap, "data_of", lambda *_: data)
    monkeypatch.setattr(generalization_gap, "training_token_counts", lambda _: np.arange(9))
    of_data, _, _ = generalization_gap.gap_targets(results, tmp_path, longs, SHORT)
    assert set(of_data["source"]) == {"C4"} and set(of_data["log_token_count"]) == {np.log(8)}
    parameters = {"results": str(results), "long_models": LONG, "short_models": SHORT[:1]}
    execute(
        NOTEBOOKS / "sparsity_and_generalization.ipynb",
        tmp_path / "figures",
        parameters | {"figures_folder": str(tmp_path)},
    )
    assert (tmp_path / "gap_by_sparsity-pose0.png").is_file()
