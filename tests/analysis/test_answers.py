"""The closing page: its numbers are those of the statistics, and what results lack is said."""

import shutil
from pathlib import Path

import forked_stages
import numpy as np
import pandas as pd
import pytest
from synthetic_results import LONG_MODELS, Truth, write_results
from written_results import write_rows

from analysis import answers
from analysis.losses.token_worth import excess_over_null, recovered_losses
from analysis.read import interval_of, read_sparse_losses
from pipeline.cli import InputError
from pipeline.results.write import StageOutput


def losses() -> pd.DataFrame:
    """A gain of 1 nat, 0.5 expected, 0.75 lost where the far context is another document's."""
    documents = np.repeat(np.arange(12), 2)
    jitter = 0.125 * (-1.0) ** documents  # of documents, so that intervals are not points
    return pd.DataFrame(
        {
            "model": "m", "document_id": documents.astype(str), "chunk_index": 0,
            "target_position": range(len(documents)), "loss_difference": 1 + jitter,
            "short_context_divergence": 0.5 + jitter, "specific_gain": 0.75 + jitter,
        }
    )  # fmt: skip


def test_worth_and_own_part_by_hand() -> None:
    worth, own = answers.worth_of_far_context(losses(), "m")
    assert worth.startswith("To m the far context is worth 1.000 [0.9")
    assert "before it sees the token, 0.500 [0.4" in worth
    assert "m loses 0.750 [0.6" in own and "so much, 0.750 [0.7" in own
    old = losses().assign(short_context_divergence=np.nan, specific_gain=np.nan)
    for rows in (old, old.drop(columns=["short_context_divergence", "specific_gain"])):
        worth, own = answers.worth_of_far_context(rows, "m")
        assert worth.endswith("nats a token.") and "was not measured: run loss_differences again" in own
    nothing = losses().assign(loss_difference=[0.5, -0.5] * 12)
    assert [*answers.worth_of_far_context(nothing, "m")][1].endswith("too unclear for a share of it.")


def write_choices(results: Path, rules: list[str], intervention: str = "background") -> None:
    """Own tokens of each rule are worth 0.5 of a gain of 1 nat, foreign ones 0.125; k nearest k / 8."""
    rows = []
    for rule in rules:
        for k in (1, 2, 4, 8) if rule == "nearest" else (1, 2):
            worth = k / 8 if rule == "nearest" else 0.5
            for far_context, recovered in (("own", worth), ("other_document", 0.125)):
                rows.append(
                    losses().assign(
                        rule=rule, far_context=far_context, k=k, judge="m", short_context_loss=9.0,
                        long_context_loss=2.0, background_loss=3.0, sparse_context_loss=3.0 - recovered,
                    )
                )  # fmt: skip
    write_rows(results, "loss_differences", "loss_differences", losses().assign(short_context_loss=3.0))
    output = StageOutput(
        results, "influential_tokens", "m", settings={"k": [1, 2], "intervention": intervention}, inputs={},
        num_shards=1,
    )  # fmt: skip
    columns = pd.concat(rows).drop(columns=["model", "loss_difference", "specific_gain"])
    output.write_shard(0, {"sparse_context_losses": columns.to_dict("list")})


@pytest.mark.parametrize(
    ("rules", "parts"),
    [
        (["nearest", "leave_one_out", "add_one_in_divergence"], [
            "2 far tokens (add_one_in_divergence), put into another document's far context, give 0.375 [0",
            "nats beyond what the same search finds in another document: 0.375 [0.375, 0.375] of the 1.000",
            "between 2 and 4 of the nearest tokens do as much.",  # 3 nearest tokens would be worth as much
        ]),
        (["leave_one_out", "leave_one_out_divergence", "random"], [
            "(leave_one_out_divergence)", "give 0.500 [0.500, 0.500] nats: ",
            "(another document's tokens, chosen alike, give 0.125 [0.125, 0.125]).",
        ]),
        (["leave_one_out", "nearest"], ["(leave_one_out)", "0.375 [0.375, 0.375] nats beyond"]),
        (["nearest", "random"], ["How many tokens carry it was not measured: run influential_tokens with"]),
    ],
)  # fmt: skip
def test_the_least_fooled_measure_says_who_carries_it(
    tmp_path: Path, rules: list[str], parts: list[str]
) -> None:
    write_choices(tmp_path, rules)
    third = list(answers.answers(tmp_path))[2]
    assert [part for part in parts if part not in third] == [], third


def test_short_models_and_a_rule_that_sees_the_answer(scales: tuple[Path, Truth, Truth]) -> None:
    results = scales[0] / "small"
    *_, carried, first, second = answers.answers(results)
    excess = excess_over_null(read_sparse_losses(results, only={"model": ["long-seed0"]}))
    (row,) = excess[(excess["rule"] == "leave_one_out") & (excess["k"] == 16)].to_dict("records")
    assert f"give {interval_of(row, 'excess_loss')} nats beyond what the same search finds" in carried
    for sentence, model in ((first, "short-contiguous"), (second, "short-pose")):
        assert sentence.startswith(f"Under the long context {model} loses ")
        assert "more than long-seed1; with every doubling" in sentence


def test_what_is_missing_for_the_last_answer_is_said(results: Path, tmp_path: Path) -> None:
    assert "the results do not say how the models were trained" in list(answers.answers(results))[-1]
    for models, sentence in (
        (["short-pose", LONG_MODELS[0]], "a second long-trained seed is needed"),
        (LONG_MODELS, "it needs models trained at a short context"),
    ):
        folder = tmp_path / models[0]
        write_results(folder, models=models, scale=(1000, 50), num_documents=4)
        assert sentence in list(answers.answers(folder))[-1]


def cells(text: str, model: str, k: str) -> list[str]:
    """Cells of one row; columns are at least two spaces apart."""
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    return next(row for row in rows if row[:2] == [model, k])


def test_recovered_table_shows_the_statistics(results: Path, sparse_context_losses: pd.DataFrame) -> None:
    table = answers.recovered_table(results, "leave_one_out")
    chosen = sparse_context_losses[sparse_context_losses["rule"] == "leave_one_out"]
    recovered = recovered_losses(chosen).set_index(["model", "k", "far_context"])
    own, null = (recovered.loc[("long-seed0", 4, far_context)] for far_context in ("own", "other_document"))
    expected = [interval_of(own, "recovered_fraction"), interval_of(null, "recovered_fraction")]
    expected.append(interval_of(own, "recovered_loss"))
    assert cells(table, "long-seed0", "4")[2:5] == list(map(str, expected))
    assert cells(table, "short-contiguous", "8")[2:4] == ["no gain", "no gain"]
    assert cells(table, "short-pose", "-") == ["short-pose", *["-"] * 5]
    with pytest.raises(InputError, match="did you mean 'nearest'"):
        answers.recovered_table(results, "nearst")


def test_runs_from_any_directory_and_refuses_in_a_sentence(results: Path, tmp_path: Path) -> None:
    done = forked_stages.run("analysis/summary.py", "--results", results, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert cells(done.stdout, "long-seed0", "16 / 256")
    assert f"{results}/loss_differences/model=*/*.parquet" in done.stdout
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
    text = answers.page(tmp_path, tmp_path / "figures", "leave_one_out")
    assert text.index("loss_against_k-m.png") < text.index("calibration.png")  # the paper's own figure first
    assert answers.models_table(tmp_path) in text
    assert "not measured: no influential tokens" in text
    assert "run influential_tokens with its own choice of rules" in " ".join(text.split())
