"""Every figure of the language results, drawn from tiny results: it can be read, its title is its data's."""

import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible
from matplotlib.figure import Figure
from synthetic_results import KS, SHORT_MODELS, write_results

from analysis.drawing import TRAINED_LONG, Role, model_roles
from analysis.gap import gaps as gain_bins
from analysis.gap import scale as model_scale
from analysis.gap import scale as scale_figures
from analysis.gap import slopes as gap_figures
from analysis.gap import slopes as gap_slopes
from analysis.gap import sparsity as sparsity_figures
from analysis.gap import sparsity as sparsity_measures
from analysis.gap.gaps import generalization_gap_by_sparsity
from analysis.losses import calibration
from analysis.losses import calibration as calibration_figures
from analysis.losses import losses as length_figures
from analysis.losses import token_worth as recovered_figures
from analysis.losses import token_worth as token_effect_figures
from analysis.losses import token_worth as token_effects
from analysis.losses.losses import losses_beside_reference, losses_by_context_length
from analysis.losses.token_worth import recovered_losses
from analysis.read import read_sparse_losses
from analysis.rules import selection as rule_figures
from analysis.rules import selection as selection_rules
from pipeline.results.read import read_artefact, read_settings

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
LONG = "long-seed0"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two sizes of four models, in results that tell how each was trained."""
    folder = tmp_path_factory.mktemp("told")
    write_results(folder / "small", scale=(460_000, 400))
    write_results(folder / "large", scale=(2_300_000, 400), seed=1)
    return [folder / "small", folder / "large"]


def recovered(told: list[Path]) -> Figure:
    rows = recovered_losses(read_sparse_losses(told[0], only={"model": [LONG]}))
    return recovered_figures.recovered_figure(rows, model_roles(told[0], "sparse_context_losses")[LONG])


def recovered_without_gain(told: list[Path]) -> Figure:
    model = "short-contiguous"
    rows = recovered_losses(read_sparse_losses(told[0], only={"model": [model]}))
    return recovered_figures.recovered_figure(rows, model_roles(told[0], "sparse_context_losses")[model])


def effects_of_another_judge(told: list[Path]) -> Figure:
    effects = token_effects.token_effects(read_sparse_losses(told[0], every_judge=True))
    rows = effects[(effects["model"] == LONG) & (effects["judge"] == "another-model")]
    role = model_roles(told[0], "sparse_context_losses")[LONG]
    return token_effect_figures.effects_figure(rows, role, "another model")


def lengths(told: list[Path]) -> Figure:
    losses = read_artefact(told[0], "length_losses")
    return length_figures.lengths_figure(
        losses_beside_reference(losses, LONG, 16),
        losses_by_context_length(losses),
        model_roles(told[0], "loss_differences"),
        [32, 256],
    )


def gap_tables(told: list[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The gaps by class, and their slopes."""
    results = told[0]
    loss_differences = read_artefact(results, "loss_differences")
    measured, _ = sparsity_measures.read_sparsity_measures(results, LONG)
    gaps = generalization_gap_by_sparsity(
        loss_differences, measured[measured["measure"] == "leave_one_out"], short_models=SHORT_MODELS,
        reference_model="long-seed1", studied_ks=KS,
    )  # fmt: skip
    targets = gap_slopes.gap_targets(
        loss_differences, short_models=SHORT_MODELS, reference_model="long-seed1",
        difficulty_model="long-seed1", gain_model=LONG, token_counts_V=None,
    )  # fmt: skip
    return gaps, gap_slopes.gap_slopes(targets, measured, KS[-1])


def gaps_by_sparsity(told: list[Path]) -> Figure:
    gaps, slopes = gap_tables(told)
    of_rule = slopes[slopes["measure"] == "leave_one_out"]
    roles = model_roles(told[0], "loss_differences")
    return gap_figures.gap_figure(gaps, of_rule, roles, "frequency, position,\ndifficulty")


def gaps_sampled_and_expected(told: list[Path]) -> Figure:
    gaps, slopes = gap_tables(told)
    of_rule = slopes[slopes["measure"] == "leave_one_out"]
    expected = of_rule.assign(
        slope=of_rule["slope"] / 2, slope_low=of_rule["slope_low"] / 2, slope_high=of_rule["slope_high"] / 2
    )
    roles = model_roles(told[0], "loss_differences")
    return gap_figures.gap_figure(gaps, of_rule, roles, "frequency, position,\ndifficulty", expected)


def slopes(told: list[Path]) -> Figure:
    roles = model_roles(told[0], "loss_differences")
    return gap_figures.slopes_figure(gap_tables(told)[1], roles, "frequency, position,\ndifficulty")


def scale(told: list[Path]) -> Figure:
    compared = model_scale.compared_models(told)
    return scale_figures.scale_figure(
        model_scale.gains_by_scale(compared),
        model_scale.carried_by_scale(compared),
        model_scale.gaps_by_scale(compared),
    )


def sparsity(told: list[Path]) -> Figure:
    results, tables = told[0], []
    for model in (LONG, "long-seed1"):
        measured, _ = sparsity_measures.read_sparsity_measures(results, model)
        tables.append(gain_bins.shares_of_gaining_targets(measured, KS).assign(model=model))
    return sparsity_figures.sparsity_figure(pd.concat(tables), model_roles(results, "loss_differences"))


def rules(told: list[Path]) -> Figure:
    losses = read_sparse_losses(told[0], only={"model": [LONG]})
    settings = read_settings(told[0], "influential_tokens")
    lengths = {"targets_per_chunk": 16}
    table = selection_rules.rules_table(losses, {LONG: settings[LONG] | lengths})
    return rule_figures.rules_figure(table, model_roles(told[0], "sparse_context_losses")[LONG])


def calibrated(told: list[Path]) -> Figure:
    generator = np.random.default_rng(1)
    expected = generator.gamma(1, 0.2, (2, 640))
    targets = pd.DataFrame(
        {
            "document_id": np.tile(np.repeat(np.arange(40), 16).astype(str), 2),
            "model": np.repeat(["a", "b"], 640),
            "short_context_divergence": expected.ravel(),
            "foreign_context_divergence": expected.ravel() / 2,
            "loss_difference": expected.ravel() + generator.normal(0, 0.1, 1280),
            "specific_gain": expected.ravel() / 2 + generator.normal(0, 0.1, 1280),
        }
    )
    bins = [calibration.calibration_bins(targets, name) for name in calibration.EXPECTED_AND_ACTUAL]
    roles = {name: Role(f"trained at 256, seed {name}", TRAINED_LONG, None, 256) for name in "ab"}
    return calibration_figures.calibration_figure(
        pd.concat(bins), calibration.calibration_slopes(targets), roles
    )


DRAWINGS: dict[Callable[[list[Path]], Figure], str] = {
    recovered: "What k tokens recover that leave one out chooses, and what it recovers in another document",
    recovered_without_gain: "The long context brings no clear gain, so there is none for few tokens to carry",
    effects_of_another_judge: "4 tokens carry no clear share of what the far context is worth beyond their",
    lengths: "256 tokens instead of 16 help models trained at 256",
    gaps_by_sparsity: "The gap rises with k*, with or without the gain held constant",
    gaps_sampled_and_expected: "The gap rises with k*; with the gain held constant the expected gap rises",
    slopes: "The gap rises with k* in ",
    scale: "No clear difference between 0.46 M parameters and 2.3 M parameters",
    sparsity: "4 tokens suffice for ",
    rules: "Of what rules that see the answer recover, ",
    calibrated: "Gains come as expected: no slope differs clearly from that of a calibrated model, 1",
}
"""The drawing -> how its title begins."""


@pytest.mark.parametrize("draw", DRAWINGS, ids=lambda draw: draw.__name__)
def test_every_figure_can_be_read_and_says_what_it_shows(
    draw: Callable[[list[Path]], Figure], told: list[Path]
) -> None:
    figure = draw(told)
    (title,) = [text.get_text() for text in figure.texts if text.get_gid() == "title"]
    assert " ".join(title.split()).startswith(DRAWINGS[draw])
    assert_legible(figure)


def test_every_figure_that_a_notebook_draws_is_drawn_here_or_in_a_test_of_its_own() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert "assert_legible(" in tests
    for path in sorted((ANALYSIS / "notebooks").glob("*.ipynb")):
        source = "".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
        for module, function in re.findall(r"(\w+_figures)\.(\w+_figure)\(", source):
            assert f"{module}.{function}(" in tests, f"{path.name} draws {module}.{function}"
