"""The numbers of the reference study that pages quote are those of the results kept in analysis/reference.

Not checked here: slopes, which need the training text's counts of tokens.
"""

import itertools
import re
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from quoted import (
    C4,
    CHOOSING,
    FINDINGS,
    FIRST_PAGE,
    JUDGE,
    JUDGED,
    LARGEST,
    LOG,
    REFERENCE,
    SMALLER,
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

from analysis.gap.gaps import JUDGED as JUDGED_BY_ANOTHER
from analysis.gap.gaps import expected_gaps, read_sparsity_measures, shares_of_gaining_targets
from analysis.gap.scale import carried_by_scale, changes_with_scale, compared_models, gaps_by_scale
from analysis.gap.slopes import CALIBRATION, few_and_many, gap_targets, mean_gaps
from analysis.losses.losses import summarize_models
from analysis.losses.token_worth import loss_curves, token_effects
from analysis.read import TARGET, of_targets, read_sparse_losses
from analysis.tokens.kinds import by_repeats, gaps_by_repeats
from pipeline.query import connect, run_query
from pipeline.results.read import read_artefact
from pipeline.results.schemas import DIVERGENCE, LOSS

SIZES = {
    "300k": (SMALLER, ("300k-long-seed0", "300k-long-seed1", "300k-long-seed0")),
    "2m": (JUDGED, (CHOOSING, JUDGE, "2m-long-seed2")),
    "8m": (LARGEST, ("8m-long-seed0", "8m-long-seed1", "8m-long-seed0")),
}
"""Of each size: results, and the models that choose, judge, and are the floor of expected gaps."""


@pytest.mark.parametrize(
    ("results", "heading", "prefix"),
    [(JUDGED, "Is the far context worth anything?", "2m-"), (C4, "What did a smaller run find?", "")],
)
def test_gains_of_the_long_context(results: Path, heading: str, prefix: str) -> None:
    models = by(summarize_models(read_artefact(results, "loss_differences", None)), "model")
    seed = "-seed0" if prefix else ""
    shown = {
        "trained at 256, seed 0 ": "long-seed0", "trained at 256, seed 1 ": "long-seed1",
        "trained at 64 ": f"short-contiguous{seed}",
    }  # fmt: skip
    if prefix:
        shown |= {f"trained at 64, PoSE to 256, seed {seed} ": f"short-pose-seed{seed}" for seed in (0, 1)}
        shown["trained at 256, seed 2 "] = "long-seed2"
    else:
        shown["trained at 64, PoSE to 256 "] = "short-pose"
    for label, name in shown.items():
        row, cells = models[prefix + name], cells_of(section(FINDINGS, heading), label)
        if not prefix:
            agree(cells[-1], *interval(row, "loss_difference"))
            continue
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
        "chosen, beyond ": ("leave_one_out_divergence", "excess"),
        "nearest ": ("nearest", "effect"), "random ": ("random", "effect"),
    }  # fmt: skip
    for label, (rule, name) in rows.items():
        for k, cell in zip((1, 2, 4, 8, 16), cells_of(text, label), strict=True):
            agree(cell, *interval(effects[JUDGE, DIVERGENCE, rule, k], name))
    whole = interval(effects[JUDGE, DIVERGENCE, "leave_one_out_divergence", 4], "gain")
    agree(re.findall(r"far context is worth (\S+ \[.*?\])", text.replace("\n", " "))[0], *whole)
    for (criterion, of_criterion), (judge, number) in itertools.product(
        ((DIVERGENCE, "prediction"), (LOSS, "loss")), ((JUDGE, 1), (CHOOSING, 0))
    ):
        four = effects[judge, criterion, "leave_one_out_divergence", 4]
        for place, name in enumerate(("gain", "effect", "share")):
            agree_cell(text, f"the {of_criterion}, judged by seed {number}", four, name, place)


def test_for_how_many_predictions_few_tokens_suffice() -> None:
    text = section(FINDINGS, "Do few tokens carry it?")
    measured, losses = read_sparsity_measures(JUDGED, CHOOSING)
    judged = measured[measured["measure"] == f"leave_one_out_divergence{JUDGED_BY_ANOTHER}"]
    shares = by(shares_of_gaining_targets(judged, sorted(losses["k"].unique())), "k")
    for place, k in ((2, 4), (3, 16)):
        agree_cell(text, "all of these", shares[k], "share", place)
    shown = commands_of(FINDINGS, "The reference study")
    (sql,) = (command.arguments[-1] for command in shown if "at_stake" in command.text)
    rows = run_query(connect(JUDGED, sql), sql, 50)[1]
    for label, row in zip(("0.1 to 0.5", "0.5 to 1", "1 and more", "all of these"), rows, strict=True):
        assert row[0] in (label, None)
        for cell, value in zip(cells_of(text, label), row[1:], strict=True):
            agree(cell.partition(" [")[0], value)
    agree(re.findall(r"median prediction gets (\S+) of it", text)[0], rows[-1][2])
    first = section(FIRST_PAGE, "What was found").replace("\n", " ")
    agree(" ".join(re.findall(r"gets (\d+) % back; .* stake (\d+) %", first)[0]), 19, 100 * rows[2][3])


def test_how_many_predictions_two_seeds_give_a_k() -> None:
    text = section(FINDINGS, "Do sparse predictions generalize better?")
    only = {"rule": ["leave_one_out_divergence"]}
    rows = read_artefact(JUDGED, "dependency_sparsity", None, only)
    of_judge = rows.pivot(index=TARGET, columns=["criterion", "judge"], values="dependency_sparsity")
    by_divergence = of_judge[DIVERGENCE]
    counts = by_divergence.notna().sum()
    both = by_divergence.dropna()
    same = (both[JUDGE] == both[CHOOSING]).sum()
    quoted = re.findall(
        r"(\d+) targets have a k\S+ by seed 1; (\d+) have one by seed 0 too, (\d+) the same", text
    )
    agree(" ".join(quoted[0]), counts[JUDGE], len(both), same)
    by_loss = of_judge[LOSS][CHOOSING].notna().sum()
    errata = re.findall(r"(\d+) is by the loss; by the divergence (\d+) against (\d+)", LOG.read_text())
    agree(" ".join(errata[0]), by_loss, counts[CHOOSING], counts[JUDGE])


def test_gaps_of_the_reference_study() -> None:
    text = section(FINDINGS, "Do sparse predictions generalize better?")
    losses = read_artefact(JUDGED, "loss_differences", None)
    shorts = ["2m-short-pose-seed0", "2m-short-pose-seed1", "2m-short-contiguous-seed0"]
    found = expected_gaps(losses, short_models=shorts, floor_model="2m-long-seed2")
    means = by(mean_gaps(found), "model")
    targets = gap_targets(
        losses, short_models=shorts, reference_model="2m-long-seed2", difficulty_model=JUDGE,
        gain_model=CHOOSING, token_counts_V=None,
    )  # fmt: skip
    measured, _ = read_sparsity_measures(JUDGED, CHOOSING)
    judged = measured[measured["measure"] == f"leave_one_out_divergence{JUDGED_BY_ANOTHER}"]
    split = by(few_and_many(targets, judged), "model")
    for label, model in zip(("PoSE, seed 0 ", "PoSE, seed 1 ", "contiguous "), shorts, strict=True):
        agree_cell(text, label, means[model], "generalization_gap")
        for place, name in enumerate(("few_less_many", "few_share", "many_share"), 2):
            agree_cell(text, label, split[model], name, place)
        agree_cell(text, f"expected, {label}", means[model], "expected_gap")
        agree_cell(text, f"expected, {label}", means[model], CALIBRATION, 2)
    words = text.replace("\n", " ")
    counts = split[shorts[0]]["num_few"], split[shorts[0]]["num_many"]
    agree(" ".join(re.findall(r"of these (\d+) less that of the (\d+)", words)[0]), *counts)
    mean = losses.groupby("model")["reference_divergence"].mean()
    quoted = re.findall(r"seed 2 differs by (\S+) nats and PoSE by (\S+)\.", words)[0]
    agree(" ".join(quoted), mean["2m-long-seed2"], mean[shorts[0]])


@pytest.mark.slow  # likewise
@pytest.mark.parametrize(("place", "size"), list(enumerate(SIZES)))
def test_what_changes_with_size(place: int, size: str) -> None:
    text, _, rest = section(FINDINGS, "What changes with model size?").partition("| larger less smaller ")
    results, (choosing, judge, floor) = SIZES[size]

    def agrees(label: str, row: Row, name: str) -> None:
        agree_cell(text, label, row, name, place)

    losses = read_artefact(results, "loss_differences", None)
    gains = by(summarize_models(losses), "model")[choosing]
    agrees("gain of the long", gains, "loss_difference")
    agrees("own: how much worse", gains, "specific_gain")
    of_model = {"model": [choosing]}
    effects = token_effects(read_sparse_losses(results, only=of_model, every_judge=True))
    judged = by(effects[effects["judge"] == judge], "criterion", "rule", "k")
    four = judged[DIVERGENCE, "leave_one_out_divergence", 4]
    for label, name in (
        ("what the far context is worth", "gain"), ("what 4 chosen tokens", "effect"),
        ("their null", "null_recovered"), ("share that 4 chosen", "share"),
    ):  # fmt: skip
        agrees(label, four, name)
    agrees("share that 16 chosen", judged[DIVERGENCE, "leave_one_out_divergence", 16], "share")
    agrees("share that the 16 nearest", judged[DIVERGENCE, "nearest", 16], "share")
    measured, sparse = read_sparsity_measures(results, choosing)
    measured = measured[measured["measure"] == f"leave_one_out_divergence{JUDGED_BY_ANOTHER}"]
    shares = by(shares_of_gaining_targets(measured, sorted(sparse["k"].unique())), "k")
    agrees("predictions that gain", shares[4], "share")
    agrees("the same of 16", shares[16], "share")
    short = f"{size}-short-pose-seed0"
    assert f", {measured['dependency_sparsity'].notna().sum()} targets" in cells_of(text, "its change")[place]
    gaps = by(gaps_by_scale(compared_models([results])), "model")
    agrees("gap of the PoSE model, nats", gaps[short], "generalization_gap")
    expected = by(mean_gaps(expected_gaps(losses, short_models=[short], floor_model=floor)), "model")[short]
    agrees("gap to the seed that the expected", expected, "generalization_gap")
    agrees("expected gap ", expected, "expected_gap")
    agrees("nats of that gap for each", expected, CALIBRATION)
    beyond = re.findall(r"beyond it they carry (\S+), (\S+) and (\S+) of", rest.replace("\n", " "))[0][place]
    agree(beyond, four["excess"] / four["gain"])


@pytest.mark.slow  # likewise
def test_what_a_larger_size_has_beyond_a_smaller_one() -> None:
    text = section(FINDINGS, "What changes with model size?")
    changes = changes_with_scale(compared_models([results for results, _ in SIZES.values()]))
    rows = {
        "loss at 256": ("long_context_loss", None, None),
        "gain of the long context, nats ": ("loss_difference", None, None),
        "share that 4 chosen": ("share", "leave_one_out_divergence", 4),
        "share that 16 chosen": ("share", "leave_one_out_divergence", 16),
        "share that the 16 nearest": ("share", "nearest", 16),
    }  # fmt: skip
    *_, table = text.split("| larger less smaller ")
    headings = cells_of(f"| larger less smaller {table}", "larger less smaller")
    for place, (_, of_pair) in enumerate(changes.groupby("larger")):
        agree(headings[place].partition(", ")[2], of_pair["num_targets"].iloc[0])
        for label, (what, rule, k) in rows.items():
            found = of_pair[of_pair["what"] == what]
            if rule is not None:
                found = found[(found["rule"] == rule) & (found["k"] == k)]
            (row,) = found.to_dict("records")
            agree(cells_of(table, label)[place], *interval(row, "difference"))


@pytest.mark.slow  # intervals of several hundred ratios
@pytest.mark.parametrize(("place", "size"), list(enumerate(SIZES)))
def test_what_copying_can_predict_and_all_others(place: int, size: str) -> None:
    text = section(FINDINGS, "What changes with model size?")
    results, (choosing, judge, _) = SIZES[size]
    losses = read_artefact(results, "loss_differences", None, {"model": [choosing]})
    kinds = zip(("ends of repeats", "all others"), of_kinds().values(), effects_of_kinds(size), strict=True)
    for label, targets, effects in kinds:
        of_kind = of_targets(losses, targets)
        agree_cell(text, f"{label}: gain", summarize_models(of_kind).iloc[0], "loss_difference", place)
        share = 100 * of_kind["loss_difference"].sum() / losses["loss_difference"].sum()
        agree(cells_of(text, f"{label}: share of all gain")[place], share)
        four = effects[judge, DIVERGENCE, "leave_one_out_divergence", 4]
        agree_cell(text, f"{label}: share that 4", four, "share", place)


def test_gaps_where_a_phrase_is_repeated_and_elsewhere() -> None:
    text = section(FINDINGS, "Do sparse predictions generalize better?")
    categories = pd.read_parquet(REFERENCE / "judged/data/token_categories.parquet")
    shorts = [f"2m-short-pose-seed{seed}" for seed in (0, 1)]
    losses = read_artefact(JUDGED, "loss_differences", None)
    gaps = gaps_by_repeats(
        losses, categories, short_models=shorts, reference_model="2m-long-seed2", gain_model=CHOOSING
    )
    rows = by(gaps, "kind", "model")
    for kind in dict.fromkeys(gaps["kind"]):
        for place, name in enumerate(("generalization_gap", "gap_share")):
            for seed, model in enumerate(shorts):
                agree_cell(text, kind, rows[kind, model], name, 2 * place + seed)
    after = rows["after a repeated bigram", shorts[0]]["num_targets"]
    agree(re.findall(r"\((\d+) targets stand after a bigram", text)[0], after)


@cache
def of_kinds() -> dict[str, pd.DataFrame]:
    """Ends of repeats and all other targets, by the table that is kept in the place of the text."""
    return by_repeats(pd.read_parquet(REFERENCE / "judged/data/token_categories.parquet"))


@cache
def effects_of_kinds(size: str) -> list[dict[Any, Row]]:
    """Of both: (judge, criterion, rule, k) -> what k tokens of the choosing model are worth."""
    results, (choosing, _, _) = SIZES[size]
    losses = read_sparse_losses(results, only={"model": [choosing]}, every_judge=True)
    tables = [token_effects(of_targets(losses, targets)) for targets in of_kinds().values()]
    return [by(effects, "judge", "criterion", "rule", "k") for effects in tables]


@pytest.mark.slow  # likewise
def test_from_size_to_size_what_copying_can_predict() -> None:
    text = section(FINDINGS, "What changes with model size?")
    compared = compared_models([results for results, _ in SIZES.values()])
    for label, targets in zip(("ends of repeats", "all others"), of_kinds().values(), strict=True):
        changes = changes_with_scale(compared, targets)
        fours = changes[(changes["rule"] == "leave_one_out_divergence") & (changes["k"] == 4)]
        losses = changes[changes["what"] == "long_context_loss"]
        for what, rows in (("share of 4 tokens", fours), ("loss at 256 tokens", losses)):
            for cell, row in zip(cells_of(text, f"{label}, {what}"), rows.to_dict("records"), strict=True):
                agree(cell, *interval(row, "difference"))


def test_the_figure_of_sizes_is_judged_by_another_seed() -> None:
    carried = carried_by_scale(compared_models([SMALLER]))
    assert set(carried["judge"]) == {"300k-long-seed1"}
    assert set(carried["criterion"]) == {DIVERGENCE}
    assert set(carried["rule"]) == {"leave_one_out_divergence", "nearest", "random"}
    assert set(carried["k"]) == {16}


def test_the_first_page(effects: dict[Any, Row]) -> None:
    text = section(FIRST_PAGE, "What was found").replace("\n", " ")
    models = by(summarize_models(read_artefact(JUDGED, "loss_differences", None)), "model")
    gain = interval(models[CHOOSING], "loss_difference")
    agree(re.findall(r"by (\S+ \[.*?\]) nats a token", text)[0], *gain)
    four = effects[JUDGE, DIVERGENCE, "leave_one_out_divergence", 4]
    agree(re.findall(r"carry (\d+ % \[.*?\])", text)[0], *(100 * value for value in interval(four, "share")))
    agree(re.findall(r"carries (\d+) %", text)[0], 100 * four["null_recovered"] / four["gain"])
    shares = [
        100 * effects[JUDGE, DIVERGENCE, "leave_one_out_divergence", 4]["share"]
        for effects in effects_of_kinds("2m")
    ]
    agree(" ".join(re.findall(r"repeated it is (\d+) %, elsewhere (\d+) %", text)[0]), *shares)
    curves = by(
        loss_curves(read_sparse_losses(STUDY, only={"model": [CHOOSING]})), "rule", "far_context", "k"
    )
    null = curves["leave_one_out", "other_document", 16]["recovered_share"]
    agree(re.findall(r'"recover" (\S+) times', text)[0], null)
