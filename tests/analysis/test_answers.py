"""The closing page: its numbers are those of the statistics, and what results lack is said."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import forked_stages
import numpy as np
import pandas as pd
import pytest
from synthetic_results import Truth
from written_results import write_rows

from analysis import answers
from analysis.figures.recovered_loss import token_effects
from analysis.read import interval_of, read_sparse_losses
from pipeline.results.write import StageOutput


def losses() -> pd.DataFrame:
    """A gain of 1 nat, 0.5 expected, 0.75 lost where the far context is another document's."""
    documents = np.repeat(np.arange(12), 2)
    jitter = 0.125 * (-1.0) ** documents  # of documents, so that intervals are not points
    return pd.DataFrame(
        {
            "model": "m",
            "document_id": documents.astype(str),
            "chunk_index": 0,
            "target_position": range(len(documents)),
            "loss_difference": 1 + jitter,
            "short_context_divergence": 0.5 + jitter,
            "specific_gain": 0.75 + jitter,
        }
    )


def test_worth_and_own_part_by_hand() -> None:
    text = answers.worth_of_far_context(losses(), "m")
    assert text.startswith("The far context is worth 1.000 [0.9")
    assert "nats a token to m; another document's in its place costs 0.750 [0.6" in text
    old = losses().assign(specific_gain=np.nan)
    for rows in (old, old.drop(columns="specific_gain")):
        assert "was not measured: run loss_differences again" in answers.worth_of_far_context(rows, "m")


NULL = "own", "other_document"


def write_choices(
    results: Path, rules: list[str], intervention: str = "background", far_contexts: Sequence[str] = NULL
) -> None:
    """Own tokens of each rule are worth 0.5 of a gain of 1 nat, foreign ones 0.125; k nearest k / 8."""
    rows = []
    for rule in rules:
        for k in (1, 2, 4, 8) if rule == "nearest" else (1, 2):
            worth = k / 8 if rule == "nearest" else 0.5
            for far_context, recovered in zip(far_contexts, (worth, 0.125), strict=False):
                rows.append(
                    losses().assign(
                        rule=rule,
                        far_context=far_context,
                        k=k,
                        judge="m",
                        short_context_loss=9.0,
                        long_context_loss=2.0,
                        background_loss=3.0,
                        sparse_context_loss=3.0 - recovered,
                    )
                )
    write_rows(results, "loss_differences", "loss_differences", losses().assign(short_context_loss=3.0))
    output = StageOutput(
        results,
        "influential_tokens",
        "m",
        settings={"k": [1, 2], "intervention": intervention},
        inputs={},
        num_shards=1,
    )
    columns = pd.concat(rows).drop(columns=["model", "loss_difference", "specific_gain"])
    output.write_shard(0, {"sparse_context_losses": columns.to_dict("list")})


@pytest.mark.parametrize(
    ("rules", "parts"),
    [
        (
            ["nearest", "leave_one_out", "add_one_in_divergence"],
            [
                "2 tokens of add_one_in_divergence bring back 0.500 [0.500, 0.500] of 1.000 nats;",
                "another document's 0.125 [0.125, 0.125].",
            ],
        ),
        (["leave_one_out", "leave_one_out_divergence", "random"], ["2 tokens of leave_one_out_divergence "]),
        (["leave_one_out", "nearest"], ["2 tokens of leave_one_out "]),
        (["nearest", "random"], ["How many tokens carry it was not measured: run influential_tokens with"]),
    ],
)
def test_the_least_fooled_measure_says_who_carries_it(
    tmp_path: Path, rules: list[str], parts: list[str]
) -> None:
    write_choices(tmp_path, rules)
    second = list(answers.answers(tmp_path))[1]
    assert [part for part in parts if part not in second] == [], second


def test_a_rule_that_needs_no_null_says_who_carries_it_without_one(tmp_path: Path) -> None:
    write_choices(tmp_path, ["leave_one_out_divergence", "nearest"], far_contexts=["own"])
    carried = list(answers.answers(tmp_path))[1]
    assert carried.endswith(
        "2 tokens of leave_one_out_divergence bring back 0.500 [0.500, 0.500] of 1.000 nats."
    )
    write_choices(tmp_path / "answer", ["leave_one_out"], far_contexts=["own"])
    assert "was measured without the null that it needs" in list(answers.answers(tmp_path / "answer"))[1]


def test_short_models_and_a_rule_that_sees_the_answer(
    scales: tuple[Path, Truth, Truth], results: Path
) -> None:
    small = scales[0] / "small"
    *_, carried, gaps = answers.answers(small)
    losses = read_sparse_losses(small, only={"model": ["long-seed0"]}, every_judge=True)
    judged = losses[(losses["judge"] == "another-model") & (losses["rule"] == "leave_one_out")]
    (row,) = token_effects(judged[judged["k"] == 16]).to_dict("records")
    own, null = (interval_of(row, name) for name in ("recovered", "null_recovered"))
    assert f"16 tokens of leave_one_out bring back {own} of" in carried
    assert f"nats to another-model; another document's {null}." in carried
    assert gaps.startswith("Nats lost beyond long-seed1 under the long context: short-contiguous ")
    assert ", short-pose " in gaps and gaps.endswith("the tokens needed.")
    assert "it needs models trained at a short context" in list(answers.answers(results))[-1]
    assert "it needs models trained at a short context" in list(answers.answers(scales[0] / "early"))[-1]


def cells(text: str, model: str, k: str) -> list[str]:
    """Cells of one row; columns are at least two spaces apart."""
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    return next(row for row in rows if row[:2] == [model, k])


def test_runs_from_any_directory_and_refuses_in_a_sentence(results: Path, tmp_path: Path) -> None:
    done = forked_stages.run("analysis/summary.py", "--results", results, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert cells(done.stdout, "long-seed0", "16 / 256")
    assert f"Data: {results} (columns" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 200
    done = forked_stages.run("analysis/summary.py", "--results", tmp_path, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "holds no 'loss_differences' results; it holds nothing" in done.stderr


def test_losses_alone_are_summarized(results: Path, tmp_path: Path) -> None:
    for folder in (Path("loss_differences"), Path("_stages", "loss_differences")):
        shutil.copytree(results / folder, tmp_path / folder)
    (tmp_path / "figures").mkdir()
    for name in ("calibration", "loss_against_k-m"):
        (tmp_path / "figures" / f"{name}.png").touch()
    text = answers.page(tmp_path, tmp_path / "figures")
    assert "loss_against_k-m.png, and 1 more" in text  # the paper's own figure first
    assert answers.models_table(tmp_path) in text
    assert "run influential_tokens with its default rules" in " ".join(text.split())
