"""Numbers that the pages quote are those that the programs make of the results kept in analysis/reference.

Not checked here: what was timed, and what the log alone says.
"""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from quoted import (
    CHOOSING,
    FINDINGS,
    FIRST_PAGE,
    RECIPES,
    REFERENCE,
    STUDY,
    Row,
    agree,
    agree_cell,
    by,
    cells_of,
    interval,
    section,
)
from shown_commands import commands_of

from analysis.losses.losses import summarize_models
from analysis.losses.token_worth import loss_curves
from analysis.read import TARGET, interval_over_documents, read_sparse_losses
from pipeline.query import connect, run_query
from pipeline.results.read import read_artefact


def test_agreement_by_example() -> None:
    agree("0.38 [0.305, 0.463]", 0.3801, 0.3051, 0.4629)
    agree("2,560", 2560.0)
    for wrong in ("0.39", "0.380 [0.305, 0.464]", "none", "0.380 [0.305, 0.463], 1"):
        with pytest.raises(AssertionError):
            agree(wrong, 0.3801, 0.3051, 0.4629)


def curves_of(results: Path, model: str) -> dict[Any, Row]:
    """(rule, far context, k) -> what is recovered, as the paper's figure draws it."""
    return by(loss_curves(read_sparse_losses(results, only={"model": [model]})), "rule", "far_context", "k")


def test_the_paper_figure() -> None:
    """The table below it, of two models, and what both pages say of it."""
    text = section(FINDINGS, "Do few tokens predict as well as all?")
    for place, model in enumerate((CHOOSING, "300k-long-seed0")):
        curves = curves_of(STUDY, model)
        for label, rule, far_context in (
            ("chosen blind", "leave_one_out_divergence", "own"), ("nearest", "nearest", "own"),
            ("random", "random", "own"), ("chosen by the answer", "leave_one_out", "own"),
            ("the same in another text |", "leave_one_out", "other_document"),
        ):  # fmt: skip
            agree_cell(text, label, curves[rule, far_context, 16], "recovered_share", place)
        agree_cell(text, "gain of the long context", curves["nearest", "own", 16], "gain", place)
    curves = curves_of(STUDY, CHOOSING)
    for page in (section(FINDINGS, "The answer"), FIRST_PAGE.read_text(encoding="utf-8")):
        share = interval(curves["leave_one_out_divergence", "own", 16], "recovered_share")
        agree(re.findall(r"bring back +(\S+ \[.*?\]) of", page)[0], *share)
    four, eight, sixteen = (curves["leave_one_out", "other_document", k] for k in (4, 8, 16))
    found = re.findall(
        r"at k = 8: their loss is (\S+) nats, that of the long context (\S+)\.", text.replace("\n", " ")
    )
    agree(" ".join(found[0]), eight["loss"], eight["long_loss"])
    assert four["loss"] > four["long_loss"] and sixteen["recovered_share_low"] > 1


def test_novels() -> None:
    text = section(FINDINGS, "What happens beyond every trained length?")
    losses = read_artefact(REFERENCE / "study/novels/results", "loss_differences", None)
    models = by(summarize_models(losses), "model")
    for label, name in {
        "trained at 256, seed 0 ": "long-seed0", "trained at 256, seed 1 ": "long-seed1",
        "trained at 64, PoSE": "short-pose-seed0", "trained at 64 ": "short-contiguous-seed0",
    }.items():  # fmt: skip
        gain, low, high = interval(models[f"2m-{name}"], "loss_difference")
        agree(cells_of(text, label)[0], -gain, -high, -low)


def test_queries_shown_with_their_answers() -> None:
    needles = REFERENCE / "study/needles/length-256"
    for page, heading, results, key in (
        (RECIPES, "LongPPL of my model", STUDY, 0),
        (RECIPES, "Needles in my model", needles / "results", None),
    ):
        sql = next(c for c in commands_of(page, heading) if c.program.endswith("query.py")).arguments[-1]
        sql = sql.replace("runs/mine/needles/length-256", str(needles))
        sql = sql.replace("'pythia-160m'", "'2m-long-seed0'")
        answer = [
            row for row in run_query(connect(results, sql), sql, 50)[1] if not str(row[0]).startswith("300k")
        ]
        rows = re.findall(r"^\| (?!---)(.*) \|$", section(page, heading), re.MULTILINE)[1:]
        for row, values in zip(rows, answer, strict=True):
            label, *cells = row.split(" | ")
            assert key is None or label == values[0]
            for cell, value in zip(cells, values[1:], strict=True):
                agree(cell, value)


def test_documents_that_gain_most_by_one_seed_gain_by_the_other() -> None:
    text = section(RECIPES, "Which of my documents need a long context?")
    losses = read_artefact(STUDY, "loss_differences", None)
    gains = losses.pivot_table(index="document_id", columns="model", values="loss_difference")
    gains = gains[["2m-long-seed0", "2m-long-seed1"]].sort_values("2m-long-seed0", ascending=False)
    agree(" ".join(cells_of(text, "first 16 ")), *gains[:16].mean())
    agree(" ".join(cells_of(text, "other 144 ")), *gains[16:].mean())


def test_the_gain_of_repeated_trigrams() -> None:
    text = section(FINDINGS, "Which tokens gain?").replace("\n", " ")
    losses = read_artefact(STUDY, "loss_differences", None)
    losses = losses.merge(pd.read_parquet(REFERENCE / "study/data/token_categories.parquet"), on=TARGET)
    quoted = re.findall(r"have (\S+ \[.*?\]) of the gain, at 0.34 million parameters (\S+ \[.*?\])", text)[0]
    for cell, model in zip(quoted, (CHOOSING, "300k-long-seed0"), strict=True):
        of_model = losses[losses["model"] == model]
        gain, is_end = of_model["loss_difference"], of_model["repetition"] == "repeated trigram"
        share = interval_over_documents(of_model["document_id"], gain.where(is_end, 0), gain)
        agree(cell, share.estimate, share.low, share.high)
        assert f"{is_end.sum()} of {len(of_model):,} targets" in text


def test_the_trial_of_the_measures() -> None:
    text = section(FINDINGS, "Which measure can be trusted?")
    table = pd.read_parquet(REFERENCE / "measures.parquet")
    rows = by(table, "rule", "intervention", "judge", "criterion")
    shown = {
        "leave one out by divergence,": (
            "leave_one_out_divergence", "background", "another seed", "divergence",
        ),
        "that, judged": ("leave_one_out_divergence", "background", "the same model", "divergence"),
        "leave one out by loss,": ("leave_one_out", "remove", "the same model", "loss"),
        "the same, judged by another seed": ("leave_one_out", "remove", "another seed", "loss"),
        "greedy by divergence,": ("greedy_divergence", "remove", "the same model", "divergence"),
    }  # fmt: skip
    for label, key in shown.items():
        for cell, name in zip(cells_of(text, label), ("found", "right_sparsity"), strict=True):
            agree(cell, *interval(rows[key], name))
    first = cells_of(FIRST_PAGE.read_text(encoding="utf-8"), "Which measure can be trusted?")[0]
    best = interval(rows[shown["leave one out by divergence,"]], "right_sparsity")
    agree(re.findall(r"22 of the 26 answers that it could be tried on \((\S+ \[.*?\])\)\.", first)[0], *best)
    most = table.loc[table["right_sparsity"].idxmax(), ["rule", "intervention", "judge"]]
    assert tuple(most) == shown["leave one out by divergence,"][:3]  # "most often", pipeline/README.md
    others = re.findall(
        r"of the gain, would have (\S+) right; .*? replaced, (\S+) by", text.replace("\n", " ")
    )
    by_loss, removed = (
        rows["leave_one_out_divergence", intervention, "another seed", criterion]
        for intervention, criterion in (("background", "loss"), ("remove", "divergence"))
    )
    agree(" ".join(others[0]), by_loss["right_sparsity"], removed["right_sparsity"])
