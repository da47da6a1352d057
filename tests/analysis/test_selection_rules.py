"""The report on selection rules: its numbers by hand, its words, its figure, and the notebook end to end."""

from pathlib import Path
from typing import Any

import forked_stages
import nbformat
import numpy as np
import pandas as pd
import pytest

from analysis.rules import selection
from pipeline.results.write import StageOutput

KS = [1, 2]
SETTINGS = {"short_context_length": 4, "long_context_length": 24, "targets_per_chunk": 2}
TARGETS = {"document_id": ["a", "a", "b", "b"], "chunk_index": [0] * 4, "target_position": [22, 23, 22, 23]}
SHORT = 3.0
LONG = 2.0
# Nats recovered, target by target, by k = 1 and k = 2 tokens.
RECOVERED: dict[tuple[str, str], list[list[float]]] = {
    ("leave_one_out", "own"): [[0.0, 0.5, 0.5, 0.0], [0.5, 0.5, 1.0, 0.5]],
    ("leave_one_out", "other_document"): [[0.0, 0.0, 0.5, 0.0], [0.0, 0.5, 0.5, 0.5]],
    ("greedy", "own"): [[1.0, 0.5, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]],
    ("greedy", "other_document"): [[0.5, 0.0, 0.5, 0.0], [0.5, 0.5, 1.0, 0.5]],
    ("random", "own"): [[0.0, 0.0, 0.5, 0.0], [0.0, 0.5, 0.5, 0.0]],
    ("random", "other_document"): [[0.0, 0.0, 0.0, 0.0], [-0.5, 0.0, 0.0, 0.0]],
}


def _sparse_context_losses() -> pd.DataFrame:
    frames = [
        pd.DataFrame(TARGETS).assign(
            rule=rule,
            far_context=far_context,
            k=k,
            short_context_loss=SHORT,
            long_context_loss=LONG,
            sparse_context_loss=SHORT - np.array(recovered),
        )
        for (rule, far_context), of_k in RECOVERED.items()
        for k, recovered in zip(KS, of_k, strict=True)
    ]
    return pd.concat(frames, ignore_index=True)


@pytest.fixture
def losses() -> pd.DataFrame:
    return _sparse_context_losses().assign(model="m")


@pytest.fixture
def table(losses: pd.DataFrame) -> pd.DataFrame:
    return selection.rules_table(losses)


@pytest.fixture
def several_rules(tmp_path: Path) -> Path:
    results = tmp_path / "results"
    output = StageOutput(
        results, "influential_tokens", "m", settings=SETTINGS, inputs={"checkpoint": "0"}, num_shards=1
    )
    tables = {
        "sparse_context_losses": _sparse_context_losses(),
    }
    output.write_shard(0, {name: rows.to_dict("list") for name, rows in tables.items()})
    return results


def _row(table: pd.DataFrame, **wanted: Any) -> dict:
    rows = table
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    (row,) = rows.to_dict("records")
    return row


def test_the_table_by_hand(table: pd.DataFrame) -> None:
    assert list(table[["rule", "k"]].itertuples(index=False, name=None)) == [
        (rule, k) for rule in ("leave_one_out", "greedy", "random") for k in KS
    ]
    row = _row(table, rule="greedy", k=2)
    assert (row["recovered_loss"], row["null_recovered_loss"], row["excess_loss"]) == (1.0, 0.625, 0.375)
    # Documents: b 1/4 and a 1/2 nats, so an error of 1/8; Student's t of one degree of freedom is 12.706.
    ends = row["excess_loss_low"], row["excess_loss_high"]
    assert ends == pytest.approx((0.375 - 12.706 / 8, 0.375 + 12.706 / 8), abs=1e-4)
    assert row["loss_difference"] == 1.0
    assert (row["num_targets"], row["num_documents"], row["sees_answer"]) == (4, 2, True)
    assert _row(table, rule="random", k=1)["sees_answer"] is False


def test_differences_are_paired(losses: pd.DataFrame) -> None:
    differences = selection.differences_between_rules(losses)
    assert set(differences["rule"]) == {"greedy", "random"}
    row = _row(differences, rule="greedy", k=1)
    # Own: 1, 0, 1/2, 0 more; null: 1/2, 0, 0, 0 more. In document a 1/4 remains, in b 1/4.
    assert (row["recovered_difference"], row["excess_difference"]) == (0.375, 0.25)
    assert (row["excess_difference_low"], row["excess_difference_high"]) == (0.25, 0.25)
    assert selection.differences_between_rules(losses, "greedy")["rule"].unique().tolist() == [
        "leave_one_out",
        "random",
    ]


@pytest.mark.slow
def test_the_notebook_from_results_to_page(several_rules: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    done = forked_stages.run(
        "analysis/run_notebooks.py",
        "--results",
        several_rules,
        "--figures",
        figures,
        "--notebooks",
        "selection_rules",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in figures.iterdir()} == {
        "selection_rules.ipynb",
        "selection_rules.parquet",
        "selection_rules-m.png",
        "selection_rules-m.pdf",
    }
    shown = "".join(
        str(output)
        for cell in nbformat.read(figures / "selection_rules.ipynb", 4).cells
        for output in cell.get("outputs", [])
    )
    assert "excess_difference" in shown
