"""The numbers of the reference study that pages quote are those of the results kept in analysis/reference."""

import re
from functools import cache
from typing import Any

import pandas as pd
import pytest
from quoted import (
    CHOOSING,
    FINDINGS,
    FIRST_PAGE,
    JUDGE,
    JUDGED,
    LARGEST,
    REFERENCE,
    SMALLER,
    Row,
    agree,
    agree_cell,
    by,
    cells_of,
    interval,
    section,
)
from shown_commands import commands_of

from analysis.gap.scale import carried_by_scale, compared_models, gaps_by_scale
from analysis.losses.losses import summarize_models
from analysis.losses.token_worth import token_effects
from analysis.needed_context import needed_context
from analysis.read import interval_over_documents, of_targets, read_sparse_losses
from analysis.tokens.kinds import by_repeats
from pipeline.query import connect, run_query
from pipeline.results.read import read_artefact
from pipeline.results.schemas import DIVERGENCE, LOSS

SIZES = {
    "300k": (SMALLER, ("300k-long-seed0", "300k-long-seed1")),
    "2m": (JUDGED, (CHOOSING, JUDGE)),
    "8m": (LARGEST, ("8m-long-seed0", "8m-long-seed1")),
}
"""Of each size: results, and the models that choose and judge."""


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
    long = table[table["model"].str.contains("-long-")]["window_90"]
    assert (round(long.min()), round(long.max())) == (111, 120)
    assert all(abs(rows[f"2m-short-pose-seed{seed}", LOSS, 96]["lost"]) < 0.006 for seed in (0, 1))


def test_for_how_many_predictions_few_tokens_suffice() -> None:
    text = section(FINDINGS, "Do few tokens carry it?")
    only = {"rule": ["leave_one_out_divergence"], "judge": [JUDGE], "criterion": [DIVERGENCE]}
    judged = read_artefact(JUDGED, "dependency_sparsity", None, only)
    judged = judged[judged["dependency_sparsity"].notna() | judged["is_censored"]]
    for place, k in ((2, 4), (3, 16)):
        is_enough = (judged["dependency_sparsity"] <= k).fillna(False)
        share = interval_over_documents(judged["document_id"], is_enough)
        agree(cells_of(text, "all of these")[place], share.estimate, share.low, share.high)
    shown = commands_of(REFERENCE / "README.md")
    (sql,) = (command.arguments[-1] for command in shown if "at_stake" in command.text)
    rows = run_query(connect(JUDGED, sql), sql, 50)[1]
    for label, row in zip(("0.1 to 0.5", "0.5 to 1", "1 and more", "all of these"), rows, strict=True):
        assert row[0] in (label, None)
        for cell, value in zip(cells_of(text, label), row[1:], strict=True):
            agree(cell.partition(" [")[0], value)


@pytest.mark.slow  # likewise
@pytest.mark.parametrize(("place", "size"), list(enumerate(SIZES)))
def test_what_changes_with_size(place: int, size: str) -> None:
    text = section(FINDINGS, "What changes with model size?")
    results, (choosing, judge) = SIZES[size]

    def agrees(label: str, row: Row, name: str) -> None:
        agree_cell(text, label, row, name, place)

    losses = read_artefact(results, "loss_differences", None)
    gains = by(summarize_models(losses), "model")[choosing]
    agrees("gain of the long", gains, "loss_difference")
    of_model = {"model": [choosing]}
    effects = token_effects(read_sparse_losses(results, only=of_model, every_judge=True))
    judged = by(effects[effects["judge"] == judge], "criterion", "rule", "k")
    four = judged[DIVERGENCE, "leave_one_out_divergence", 4]
    for label, name in (
        ("what the far context is worth", "gain"), ("their null", "null_recovered"),
        ("share that 4 chosen", "share"),
    ):  # fmt: skip
        agrees(label, four, name)
    agrees("share that 16 chosen", judged[DIVERGENCE, "leave_one_out_divergence", 16], "share")
    agrees("share that the 16 nearest", judged[DIVERGENCE, "nearest", 16], "share")
    short = f"{size}-short-pose-seed0"
    gaps = by(gaps_by_scale(compared_models([results])), "model")
    agrees("gap of the PoSE model, nats", gaps[short], "generalization_gap")


@pytest.mark.slow  # intervals of several hundred ratios
@pytest.mark.parametrize(("place", "size"), list(enumerate(SIZES)))
def test_what_copying_can_predict_and_all_others(place: int, size: str) -> None:
    text = section(FINDINGS, "What changes with model size?")
    _, (_, judge) = SIZES[size]
    for label, effects in zip(("ends of repeats", "all others"), effects_of_kinds(size), strict=True):
        four = effects[judge, DIVERGENCE, "leave_one_out_divergence", 4]
        agree_cell(text, f"{label}: share that 4", four, "share", place)


@cache
def of_kinds() -> dict[str, pd.DataFrame]:
    """Ends of repeats and all other targets, by the table that is kept in the place of the text."""
    return by_repeats(pd.read_parquet(REFERENCE / "judged/data/token_categories.parquet"))


@cache
def effects_of_kinds(size: str) -> list[dict[Any, Row]]:
    """Of both: (judge, criterion, rule, k) -> what k tokens of the choosing model are worth."""
    results, (choosing, _) = SIZES[size]
    losses = read_sparse_losses(results, only={"model": [choosing]}, every_judge=True)
    tables = [token_effects(of_targets(losses, targets)) for targets in of_kinds().values()]
    return [by(effects, "judge", "criterion", "rule", "k") for effects in tables]


def test_the_figure_of_sizes_is_judged_by_another_seed() -> None:
    carried = carried_by_scale(compared_models([SMALLER]))
    assert set(carried["judge"]) == {"300k-long-seed1"}
    assert set(carried["criterion"]) == {DIVERGENCE}
    assert set(carried["rule"]) == {"leave_one_out_divergence", "nearest", "random"}
    assert set(carried["k"]) == {16}


def test_the_first_page(effects: dict[Any, Row]) -> None:
    text = section(FIRST_PAGE, "What was found")
    models = by(summarize_models(read_artefact(JUDGED, "loss_differences", None)), "model")
    gain = cells_of(text, "Is the far context worth anything?")[0]
    agree(gain.partition(" nats")[0], *interval(models[CHOOSING], "loss_difference"))
    four = effects[JUDGE, DIVERGENCE, "leave_one_out_divergence", 4]
    carried = cells_of(text, "Do few tokens carry it?")[0]
    agree(re.findall(r"carry (\S+ \[.*?\])\.", carried)[0], *interval(four, "share"))
    agree(re.findall(r"same way, carry (\S+)$", carried)[0], four["null_recovered"] / four["gain"])
    needs = cells_of(text, "Does every prediction need few?")[0]
    quoted = cells_of(section(FINDINGS, "Do few tokens carry it?"), "1 and more")[2]
    assert f"nat at stake {quoted} need four" in needs
    median = cells_of(section(FINDINGS, "Do few tokens carry it?"), "all of these")[1]
    assert f"gets {median} of it back" in needs
