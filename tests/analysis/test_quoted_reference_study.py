"""The numbers of the reference study that pages quote are those of the results kept in analysis/reference."""

import re
from typing import Any

import numpy as np
import pytest
from quoted import (
    CHOOSING,
    FINDINGS,
    FIRST_PAGE,
    JUDGE,
    JUDGED,
    REFERENCE,
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
from analysis.losses.token_worth import token_effects
from analysis.needed_context import needed_context
from analysis.read import interval_over_documents, read_sparse_losses
from pipeline.query import connect, run_query
from pipeline.results.read import read_artefact
from pipeline.results.schemas import DIVERGENCE, LOSS


def test_gains_of_the_long_context() -> None:
    models = by(summarize_models(read_artefact(JUDGED, "loss_differences", None)), "model")
    text = section(FINDINGS, "Is the far context worth anything?")
    shown = {f"trained at 256, seed {seed} ": f"2m-long-seed{seed}" for seed in (0, 1, 2)}
    shown |= {f"trained at 64, PoSE to 256, seed {seed} ": f"2m-short-pose-seed{seed}" for seed in (0, 1)}
    for label, name in (shown | {"trained at 64 ": "2m-short-contiguous-seed0"}).items():
        row, cells = models[name], cells_of(text, label)
        agree(f"{cells[0]} {cells[1]}", row["short_context_loss"], row["long_context_loss"])
        agree(cells[2], *interval(row, "loss_difference"))
        agree(cells[3], *interval(row, "specific_gain"))


@pytest.fixture(scope="module")
def effects() -> dict[Any, Row]:
    """(judge, criterion, rule, k) -> what k tokens of long seed 0 are worth, of the reference study."""
    losses = read_sparse_losses(JUDGED, only={"model": [CHOOSING]}, every_judge=True, every_k=True)
    return by(token_effects(losses), "judge", "criterion", "rule", "k")


def test_what_few_tokens_are_worth(effects: dict[Any, Row]) -> None:
    text = section(FINDINGS, "Do few tokens carry it?")
    rows = {
        "chosen ": ("leave_one_out_divergence", "effect"),
        "their null ": ("leave_one_out_divergence", "null_recovered"),
        "nearest ": ("nearest", "effect"), "random ": ("random", "effect"),
    }  # fmt: skip
    for label, (rule, name) in rows.items():
        for k, cell in zip((1, 2, 4, 8, 16), cells_of(text, label), strict=True):
            agree(cell, *interval(effects[JUDGE, DIVERGENCE, rule, k], name))
    for k, cell in zip((1, 2, 4, 8, 16), cells_of(text, "share that the chosen carry"), strict=True):
        agree(cell, *interval(effects[JUDGE, DIVERGENCE, "leave_one_out_divergence", k], "share"))
    (drawn,) = re.findall(r"in the left panel, (\S+), is seed 1", text)
    agree(drawn, effects[JUDGE, LOSS, "nearest", 16]["gain"])
    whole = interval(effects[JUDGE, DIVERGENCE, "leave_one_out_divergence", 4], "gain")
    agree(re.findall(r"far context is worth (\S+ \[.*?\])", text.replace("\n", " "))[0], *whole)
    share = interval(effects[JUDGE, DIVERGENCE, "leave_one_out_divergence", 4], "share")
    agree(re.findall(r"carry (\S+ \[.*?\])\*\* of it", text)[0], *share)


def test_how_much_context_is_needed() -> None:
    table = needed_context(read_artefact(JUDGED, "length_losses"))
    rows, text = (
        by(table, "model", "criterion", "context_length"),
        section(FINDINGS, "How much context is needed?"),
    )
    for place, criterion in enumerate((LOSS, DIVERGENCE)):
        for w in (32, 64, 128):
            agree_cell(text, f"w = {w} loses", rows[CHOOSING, criterion, w], "lost", place)
        for percent in (90, 95, 99):
            row = rows[CHOOSING, criterion, 8]
            agree_cell(text, f"w that keeps {percent} %", row, f"window_{percent}", place)
    first = cells_of(section(FINDINGS, "All questions"), "[How much context is needed?]")[0]
    row = rows[CHOOSING, LOSS, 8]
    agree(re.findall(r"nearest (\S+ \[.*?\])", first)[0], *interval(row, "window_90"))
    (lost,) = re.findall(r"With 96 tokens instead of 248 the PoSE models lose (.*?) nats", text)
    of_pose = (interval(rows[f"2m-short-pose-seed{seed}", LOSS, 96], "lost") for seed in (0, 1))
    agree(lost, *(value for of_seed in of_pose for value in of_seed))


def test_for_how_many_predictions_few_tokens_suffice() -> None:
    text = section(FINDINGS, "Do few tokens carry it?")
    only = {"rule": ["leave_one_out_divergence"], "judge": [JUDGE], "criterion": [DIVERGENCE]}
    judged = read_artefact(JUDGED, "dependency_sparsity", None, only)
    judged = judged[judged["dependency_sparsity"].notna() | judged["is_censored"]]
    for place, k in ((2, 4), (3, 16)):
        is_enough = (judged["dependency_sparsity"] <= k).fillna(False)
        share = interval_over_documents(judged["document_id"], is_enough)
        agree(cells_of(text, "all of these")[place], share.estimate, share.low, share.high)
    at_stake = np.select([judged["gain"] < 0.1, judged["gain"] < 0.5, judged["gain"] < 1], [0, 1, 2], 3)
    for number, label in enumerate(("0.1 to 0.5", "0.5 to 1", "1 and more"), 1):
        of_bin = judged[at_stake == number]
        for place, k in ((2, 4), (3, 16)):
            is_enough = (of_bin["dependency_sparsity"] <= k).fillna(False)
            share = interval_over_documents(of_bin["document_id"], is_enough)
            agree(cells_of(text, label)[place], share.estimate, share.low, share.high)
    shown = commands_of(REFERENCE / "README.md")
    (sql,) = (command.arguments[-1] for command in shown if "at_stake" in command.text)
    rows = run_query(connect(JUDGED, sql), sql, 50)[1]
    for label, row in zip(("0.1 to 0.5", "0.5 to 1", "1 and more", "all of these"), rows, strict=True):
        assert row[0] in (label, None)
        for cell, value in zip(cells_of(text, label), row[1:], strict=True):
            agree(cell.partition(" [")[0], value)


def test_the_first_page(effects: dict[Any, Row]) -> None:
    text = section(FIRST_PAGE, "What was found")
    models = by(summarize_models(read_artefact(JUDGED, "loss_differences", None)), "model")
    gain = cells_of(text, "Is the far context worth anything?")[0]
    agree(gain.partition(" nats")[0], *interval(models[CHOOSING], "loss_difference"))
    four = effects[JUDGE, DIVERGENCE, "leave_one_out_divergence", 4]
    carried = cells_of(text, "Do few tokens carry it?")[0]
    agree(re.findall(r"carry (\S+ \[.*?\]) of what", carried)[0], *interval(four, "share"))
    agree(re.findall(r"same way, carry (\S+) of it$", carried)[0], four["null_recovered"] / four["gain"])
    sixteen = effects[JUDGE, DIVERGENCE, "leave_one_out_divergence", 16]
    for page in (FIRST_PAGE, FINDINGS):
        stricter = r"stricter measure\](?:[^[]*?)(?:gives|they carry) (\S+ \[.*?\])"
        (quoted,) = re.findall(stricter, page.read_text(encoding="utf-8"))
        agree(quoted, *interval(sixteen, "share"))
    needs = cells_of(text, "Does every prediction need few?")[0]
    of_page = section(FINDINGS, "Do few tokens carry it?")
    most, least = (cells_of(of_page, label)[2] for label in ("1 and more", "0.1 to 0.5"))
    assert f"for {most} of the predictions" in needs and needs.endswith(f"for {least.partition(' ')[0]}")
