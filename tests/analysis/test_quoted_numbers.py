"""Numbers that the pages quote are those that the programs make of the results kept in analysis/reference.

Not checked here: what needs the text too (slopes with token frequency, kinds of tokens of the first
run), what was timed, and what the log alone tells.
"""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from quoted import (
    C4,
    CHOOSING,
    FINDINGS,
    FIRST_PAGE,
    RECIPES,
    REFERENCE,
    STUDY,
    SYNTHETIC,
    Row,
    agree,
    agree_cell,
    by,
    cells_of,
    interval,
    section,
)
from shown_commands import commands_of

from analysis.gap.gaps import ALL_TARGETS, read_sparsity_measures
from analysis.gap.scale import compared_models, sparsity_by_scale
from analysis.gap.slopes import WITH_GAIN, gap_slopes, gap_targets
from analysis.losses.losses import summarize_models
from analysis.losses.token_worth import loss_curves, token_effects
from analysis.read import interval_columns, interval_over_documents, read_sparse_losses
from analysis.rules.selection import rules_table
from analysis.synthetic.theory_bounds import summarize_conditions, with_bounds
from analysis.tokens.needles import found_needles, retrieval_losses
from pipeline.query import connect, run_query
from pipeline.results.read import read_artefact, read_settings


def test_agreement_by_example() -> None:
    agree("0.38 [0.305, 0.463]", 0.3801, 0.3051, 0.4629)
    agree("2,560", 2560.0)
    for wrong in ("0.39", "0.380 [0.305, 0.464]", "none", "0.380 [0.305, 0.463], 1"):
        with pytest.raises(AssertionError):
            agree(wrong, 0.3801, 0.3051, 0.4629)


def curves_of(results: Path, model: str) -> dict[Any, Row]:
    """(rule, far context, k) -> what is recovered, as the paper's figure draws it."""
    return by(loss_curves(read_sparse_losses(results, only={"model": [model]})), "rule", "far_context", "k")


def test_what_few_tokens_recover() -> None:
    text = section(FINDINGS, "What does the paper's kind of measure say?")
    recovered = curves_of(STUDY, CHOOSING)
    for label, rule in {
        "`leave_one_out_divergence`,": "leave_one_out_divergence", "`leave_one_out`,": "leave_one_out",
        "nearest": "nearest", "random |": "random",
    }.items():  # fmt: skip
        for k, cell in zip((1, 2, 4, 8, 16), cells_of(text, label), strict=True):
            agree(cell, *interval(recovered[rule, "own", k], "recovered_share"))
    only = {"model": [CHOOSING], "rule": ["leave_one_out"]}
    effects = by(token_effects(read_sparse_losses(STUDY, only=only)), "k")
    for k, cell in zip((1, 2, 4, 8, 16), cells_of(text, "the same beyond"), strict=True):
        agree(cell, *interval(effects[k], "share"))
    beyond = re.findall(r"Beyond the null remain (\S+ \[.*?\])", text.replace("\n", " "))
    agree(beyond[0], *interval(effects[16], "excess"))


def test_the_paper_figure() -> None:
    """The table below it, of three models, and what both pages say of it."""
    text = section(FINDINGS, "Do few tokens predict as well as all?")
    models = (STUDY, CHOOSING), (STUDY, "300k-long-seed0"), (C4, "long-seed0")
    for place, curves in enumerate(curves_of(*model) for model in models):
        for label, rule, far_context in (
            ("chosen blind", "leave_one_out_divergence", "own"), ("nearest", "nearest", "own"),
            ("random", "random", "own"), ("chosen by the answer", "leave_one_out", "own"),
            ("the same in another text |", "leave_one_out", "other_document"),
        ):  # fmt: skip
            agree_cell(text, label, curves[rule, far_context, 16], "recovered_share", place)
        agree_cell(text, "gain of the long context", curves["nearest", "own", 16], "gain", place)
    curves = curves_of(STUDY, CHOOSING)
    pages = [text.replace("\n", " "), FIRST_PAGE.read_text(encoding="utf-8").replace("\n", " ")]
    for page in pages:
        share = interval(curves["leave_one_out_divergence", "own", 16], "recovered_share")
        agree(re.findall(r"bring back (\S+ \[.*?\]) of what", page)[0], *share)
    four, eight, sixteen = (curves["leave_one_out", "other_document", k] for k in (4, 8, 16))
    found = re.findall(r"at k = 8: their loss is (\S+) nats, that of the long context (\S+)\.", pages[0])
    agree(" ".join(found[0]), eight["loss"], eight["long_loss"])
    assert four["loss"] > four["long_loss"] and sixteen["recovered_share_low"] > 1


@pytest.mark.slow
def test_slopes_with_the_gain_held_constant() -> None:
    text = section(FINDINGS, "What does the paper's kind of measure say?")
    long, other = "2m-long-seed0", "2m-long-seed1"
    shorts = {"pose": "2m-short-pose-seed0", "contiguous": "2m-short-contiguous-seed0"}
    targets = gap_targets(
        read_artefact(STUDY, "loss_differences", None), short_models=list(shorts.values()),
        reference_model=other, difficulty_model=other, gain_model=long, token_counts_V=None,
    )  # fmt: skip
    measured, losses = read_sparsity_measures(STUDY, long)
    slopes = gap_slopes(targets, measured, losses["k"].max())
    with_gain = slopes[slopes["adjustment"] == WITH_GAIN]
    of_all = with_gain[with_gain["coding"] == ALL_TARGETS]
    assert len(of_all) == 10 and (of_all["slope_high"] < 0).all()
    assert not (with_gain["slope_low"] > 0).any()
    row_of = by(of_all, "measure", "model")
    for label, measure in {
        "`leave_one_out` of all": "leave_one_out", "random tokens, of all": "random",
        "`leave_one_out_divergence` of all": "leave_one_out_divergence",
    }.items():  # fmt: skip
        for cell, model in zip(cells_of(text, label), shorts.values(), strict=True):
            agree(cell, *interval(row_of[measure, model], "slope"))


def test_scale() -> None:
    text = section(FINDINGS, "What changes with model size?")
    shares = sparsity_by_scale(compared_models([STUDY]))
    for place, size in enumerate(("300k", "2m")):
        model = f"{size}-long-seed0"
        of_model = by(shares[shares["model"] == model], "measure")
        row = of_model["leave_one_out beyond its null"]
        agree_cell(text, "targets that gain", row, "share", place)
    results = REFERENCE / "study/along_training/results"
    along = summarize_models(read_artefact(results, "loss_differences", None))
    for step in (550, 1650):
        cells = cells_of(text, f"{step:,} ")
        agree(cells[0], by(along, "model")[f"2m-long-seed0-step{step}"]["loss_difference"])


def of_kind(model: str, column: str, kind: str) -> tuple[float, float, float]:
    """The gain of a kind of tokens, with its interval."""
    kinds = pd.read_parquet(REFERENCE / "study/data/token_categories.parquet")
    losses = read_artefact(STUDY, "loss_differences", None, {"model": [model]})
    joined = losses.merge(kinds, on=["document_id", "chunk_index", "target_position"])
    chosen = joined[joined[column] == kind]
    found = interval_over_documents(chosen["document_id"], chosen["loss_difference"])
    return interval(interval_columns("gain", found), "gain")


def test_kinds_of_tokens() -> None:
    text = section(FINDINGS, "Which tokens gain?")
    for label, column, kind in (
        ("that end a repeated trigram", "repetition", "repeated trigram"),
        ("proper nouns", "part_of_speech", "proper noun"), ("prepositions", "part_of_speech", "preposition"),
    ):  # fmt: skip
        agree(cells_of(text, label)[0], *of_kind("2m-long-seed0", column, kind))


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


def test_every_rule_of_the_first_run() -> None:
    text = section(FINDINGS, "Does the selection rule decide?")
    losses = read_sparse_losses(REFERENCE / "c4" / "rules")
    settings = read_settings(REFERENCE / "c4" / "rules", "influential_tokens")
    rows = by(rules_table(losses, settings), "rule", "k")
    for rule in {rule for rule, _ in rows}:
        *cells, last, cost = cells_of(text, f"`{rule}` ")
        agree(cost.partition(", and")[0], rows[rule, 16]["token_forwards_per_target"])
        for k, cell in zip((1, 2, 4, 8, 16), cells, strict=True):
            agree(cell, rows[rule, k]["recovered_loss"], rows[rule, k]["null_recovered_loss"])
        shown = "recovered_loss" if last.startswith("own") else "excess_loss"
        agree(last, *interval(rows[rule, 16], shown))


def test_queries_shown_with_their_answers() -> None:
    needles = REFERENCE / "study/needles/length-256"
    for page, heading, results, key in (
        (RECIPES, "LongPPL of my model", STUDY, 0),
        (RECIPES, "Needles in my model", needles / "results", None),
    ):
        sql = next(c for c in commands_of(page, heading) if c.program.endswith("query.py")).arguments[-1]
        sql = sql.replace("runs/mine/needles/length-256", str(needles))
        sql = sql.replace("WHERE target", "WHERE model = '2m-long-seed0' AND target")
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


def test_needles() -> None:
    text = section(FINDINGS, "Are planted needles found?")
    retrieval = by(retrieval_losses(REFERENCE / "study/needles"), "model", "context_length", "depth")
    far, near = (retrieval["2m-long-seed0", 256, depth] for depth in (0.0, 1.0))
    agree(cells_of(text, "loss of a digit without")[0], far["control_loss"])
    agree_cell(text, "how much less with the needle 256", far, "retrieval_gain")
    agree_cell(text, "how much less with the needle just", near, "retrieval_gain")
    short = retrieval["2m-short-contiguous-seed0", 256, 1.0]["retrieval_gain"]
    agree(re.findall(r"trained at 64 gains (\S+) nats", text)[0], short)
    found = found_needles(REFERENCE / "study/needles", [4])
    rows = by(found[found["context_length"] == 256], "rule", "far_context")
    own, null = rows["leave_one_out", "own"], rows["leave_one_out", "other_document"]
    agree(cells_of(text, "share of digits")[0], *interval(own, "precision"))
    blind = rows["leave_one_out_divergence", "own"]
    agree(cells_of(text, "the same of `leave_one_out_divergence`")[0], *interval(blind, "precision"))
    agree(cells_of(text, "the same in the null")[0], null["precision"], own["chance_precision"])


def test_theory() -> None:
    text = section(SYNTHETIC, "Does the theory's own class behave?")
    fits = with_bounds(read_artefact(REFERENCE / "theory/results", "sparse_functional_attention", None))
    conditions = by(summarize_conditions(fits), "model")
    for label, name in {
        "local | relative": "local", "half a sequence apart | coupled": "halves_coupled",
        "half a sequence apart | uncoupled": "halves_trained_keys",
        "uniform | relative": "uniform_trained_keys",
    }.items():  # fmt: skip
        for k, cell in zip((1, 2, 3), cells_of(text, label)[1:], strict=True):
            if cell.startswith("not learnt"):
                assert conditions[f"{name}-k{k}"]["in_distribution_error_low"] >= 0.01
            elif cell.startswith("none"):
                assert conditions[f"{name}-k{k}"]["error_rate_high"] == 0
            else:
                agree(cell.partition(" (")[0], 100 * conditions[f"{name}-k{k}"]["error_rate"])
                assert (conditions[f"{name}-k{k}"]["num_seeds"] == 3) == ("three seeds" in cell)
    for label, scale, name in (
        ("in distribution, times", 1e5, "in_distribution_error"), ("at 8 L, times", 1e3, "squared_error"),
        ("grows from L to 8 L", 1, "growth_exponent"),
    ):  # fmt: skip
        for k, cell in zip((1, 2, 3), cells_of(text, label), strict=True):
            agree(cell, *(scale * value for value in interval(conditions[f"local-k{k}"], name)))
    last = fits[(fits["test_length"] == 256) & (fits["training_step"] == 2000)]
    above = (last["published_bound"] / last["squared_error"])[last["model"].str.startswith("local-k")]
    assert above.min() > 10**3 and above.max() < 10**5


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
        for cell, name in zip(cells_of(text, label), ("found", "right_sparsity", "agreement"), strict=True):
            agree(cell, *interval(rows[key], name))
    standing = re.findall(r"far contexts (\d+) of the (\d+) give", text)
    by_loss = table.loc[table["criterion"] == "loss", "finds_nothing"]
    agree(" ".join(standing[0]), float(by_loss.sum()), float(len(by_loss)))
    best = rows[shown["leave one out by divergence,"]]
    agree(re.findall(r"best measure (\d+) %", text)[0], 100 * best["censored"])
    both = table.loc[~table["rule"].isin(("random", "nearest")), "num_agreement_targets"]
    agree(" ".join(re.findall(r"of few targets\*\*: (\d+) to (\d+)", text)[0]), both.min(), both.max())
