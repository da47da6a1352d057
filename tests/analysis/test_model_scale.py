"""Sizes and training steps: who is compared with whom, tables against the planted truth, and the notebook."""

from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible
from synthetic_results import CENSORED_K, MEAN_GAP, SELECTION_BONUS, Truth, write_results

from analysis import notebooks as notebook_execution
from analysis import notebooks as notebook_needs
from analysis.gap import gaps as gain_bins
from analysis.gap import scale as model_scale
from analysis.gap import scale as scale_figures
from analysis.tokens.kinds import write_categories
from pipeline.cli import InputError

NOTEBOOK = Path(__file__).resolve().parents[2] / "analysis/notebooks/model_scale.ipynb"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two sizes at their last step, and two long-trained models of the first at an earlier one."""
    folder = tmp_path_factory.mktemp("scales")
    write_results(folder / "small", scale=(1_000_000, 400))
    write_results(folder / "large", scale=(3_000_000, 400), seed=1)
    write_results(folder / "early", scale=(1_000_000, 100), models=["long-seed0", "long-seed1"])
    return [folder / name for name in ("large", "small", "early")]


@pytest.fixture(scope="module")
def compared(folders: list[Path]) -> list[model_scale.ComparedModels]:
    return model_scale.compared_models(folders)


def test_models_of_one_size_and_step_are_compared(compared: list[model_scale.ComparedModels]) -> None:
    found = [(group.results.name, group.num_parameters, group.train_step) for group in compared]
    assert found == [("early", 1_000_000, 100), ("small", 1_000_000, 400), ("large", 3_000_000, 400)]
    assert compared[0].short_models == ()
    assert compared[1].long_models == ("long-seed0", "long-seed1")
    assert compared[1].short_models == ("short-contiguous", "short-pose")
    assert compared[1].kinds == ("32 tokens, contiguous", "32 tokens, pose")


def test_sparsity_is_that_of_each_folder(compared: list[model_scale.ComparedModels], truth: Truth) -> None:
    table = model_scale.sparsity_by_scale(compared)
    exact = table[table["measure"] == "leave_one_out"].set_index(["num_parameters", "train_step"])
    needed = truth.targets["needed_k"]
    row = exact.loc[(1_000_000, 400)]
    assert (row["k"], row["num_targets"]) == (4, (needed > 0).sum())
    assert row["share"] == pytest.approx((needed[needed > 0] <= 4).mean())
    assert row["loss_difference"] == pytest.approx(truth.targets["gain"].mean(), abs=1e-4)
    assert len(exact) == 3
    assert exact.loc[(3_000_000, 400), "share"] != row["share"]


def test_where_no_target_gains_there_is_no_share(folders: list[Path]) -> None:
    (small,) = model_scale.compared_models(folders[1:2])
    nothing = measured_without_gain(model_scale.measured_sparsity(small))
    assert gain_bins.shares_of_gaining_targets(nothing, [1, 16]).empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_scale, "measured_sparsity", lambda _: ("long-seed0", nothing, [1, 4, 16]))
        table = model_scale.sparsity_by_scale([small])
    assert table.empty
    assert model_scale.trend_sentences(table, "num_parameters", "measure", "share", "the share") == []


def measured_without_gain(found: tuple[str, pd.DataFrame, list[int]] | None) -> pd.DataFrame:
    assert found is not None
    return found[1].assign(dependency_sparsity=np.nan, is_censored=False)


def test_the_gap_and_its_rise_are_the_planted_ones(
    compared: list[model_scale.ComparedModels], truth: Truth
) -> None:
    table = model_scale.gaps_by_scale(compared).set_index(["num_parameters", "model"])
    assert len(table) == 4  # none where no short-trained model was measured
    needed = truth.targets["needed_k"]
    doublings = np.log2(needed + 1)
    is_sparse = (needed > 0) & (needed <= 4)
    for model, gap in MEAN_GAP.items():
        row = table.loc[(1_000_000, model)]
        assert row["generalization_gap"] == pytest.approx(gap * doublings.mean(), abs=0.005)
        rise = gap * (doublings[needed > 4].mean() - doublings[is_sparse].mean())
        assert row["dense_minus_sparse"] == pytest.approx(rise, abs=0.01)
        assert row["dense_minus_sparse_low"] < rise < row["dense_minus_sparse_high"]
    assert not table["is_one_seed"].any()
    assert (needed == CENSORED_K).any()  # which is dense, and was counted so


def test_results_that_do_not_tell_their_size_are_refused(results: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="does not tell num_parameters, train_step, train_context_length of long"
    ):
        model_scale.compared_models([results])
    with pytest.raises(InputError, match="holds no 'loss_differences' results"):
        model_scale.compared_models([tmp_path])


def test_only_results_of_several_scales_are_compared(folders: list[Path], results: Path) -> None:
    assert notebook_needs.compares_scales(folders)
    assert not notebook_needs.compares_scales([results])
    assert not notebook_needs.compares_scales(folders[:1])


def test_a_trend_is_told_from_its_ends(compared: list[model_scale.ComparedModels]) -> None:
    table = pd.DataFrame(
        {"kind": "pose", "num_parameters": [3, 1, 2], "x": [2.0, 1.0, 9.0],
         "x_low": [1.5, 0.5, 8.0], "x_high": [2.5, 1.25, 10.0]}
    )  # fmt: skip
    (sentence,) = model_scale.trend_sentences(table, "num_parameters", "kind", "x", "the gap")
    assert sentence == (
        "pose: the gap is 1.000 [0.500, 1.250] and 2.000 [1.500, 2.500] at 1 and 3 parameters; the intervals"
        " do not overlap."
    )
    touching = table.assign(x_low=[1.25, 0.5, 8.0])
    (sentence,) = model_scale.trend_sentences(touching, "num_parameters", "kind", "x", "the gap")
    assert sentence.endswith("the intervals overlap.")


def test_the_figure_draws_every_line(compared: list[model_scale.ComparedModels]) -> None:
    tables = (model_scale.gains_by_scale, model_scale.carried_by_scale, model_scale.gaps_by_scale)
    gains, carried, gaps = (table(compared) for table in tables)
    gains, carried = (table[table["train_step"] == 400] for table in (gains, carried))
    figure = scale_figures.scale_figure(gains, carried, gaps)
    nats_ax, share_ax = figure.axes
    expected = [gains["loss_difference"]]
    expected += [gaps.loc[gaps["model"] == model, "generalization_gap"] for model in MEAN_GAP]
    for bar, values in zip(nats_ax.containers, expected, strict=True):
        np.testing.assert_allclose(np.asarray(bar[0].get_ydata(), dtype=float), values)
    for bar, rule in zip(share_ax.containers, ("nearest", "random"), strict=True):
        values = carried.loc[carried["rule"] == rule, "share"]
        np.testing.assert_allclose(np.asarray(bar[0].get_ydata(), dtype=float), values)
    assert [tick.get_text() for tick in nats_ax.get_xticklabels()] == ["1 M", "3 M"]
    assert nats_ax.get_ylabel() == "nats"
    plt.close(figure)


def test_what_is_carried_is_the_planted_share(
    compared: list[model_scale.ComparedModels], truth: Truth
) -> None:
    rows = model_scale.carried_by_scale(compared).set_index(["num_parameters", "train_step", "rule"])
    planted = truth.recovered_gain("nearest", 16) + SELECTION_BONUS["nearest"] * np.log2(17)
    share = planted.sum() / truth.targets["gain"].sum()
    assert rows.loc[(1_000_000, 400, "nearest"), "share"] == pytest.approx(share, abs=0.01)
    assert "leave_one_out" not in rows.index.get_level_values("rule")


def test_what_fewer_tokens_carry_of_some_targets(
    compared: list[model_scale.ComparedModels], truth: Truth
) -> None:
    assert model_scale.middle_k(compared) == 4 and model_scale.middle_k([]) is None
    is_chosen = truth.targets["target_position"] % 4 == 0
    rows = model_scale.carried_by_scale(compared, 4, truth.targets[is_chosen])
    assert set(rows["k"]) == {4} and set(rows["num_targets"]) == {is_chosen.sum()}
    planted = truth.recovered_gain("nearest", 4) + SELECTION_BONUS["nearest"] * np.log2(5)
    share = planted[is_chosen].sum() / truth.targets["gain"][is_chosen].sum()
    row = rows.set_index(["num_parameters", "train_step", "rule"]).loc[(1_000_000, 400, "nearest")]
    assert row["share"] == pytest.approx(share, abs=0.02)


def test_the_figure_of_two_kinds_draws_each_in_its_panel(compared: list[model_scale.ComparedModels]) -> None:
    every = model_scale.carried_by_scale(compared)
    every = every[every["train_step"] == 400]
    halves = {name: every[name] / 2 for name in ("share", "share_low", "share_high")}
    figure = scale_figures.carried_figure({"a kind": every, "others": every.assign(**halves)})
    assert_legible(figure)
    for ax, part in zip(figure.axes, (1, 2), strict=True):
        for bar, rule in zip(ax.containers, ("nearest", "random"), strict=True):
            values = every.loc[every["rule"] == rule, "share"] / part
            np.testing.assert_allclose(np.asarray(bar[0].get_ydata(), dtype=float), values)
        assert ax.get_ylim()[0] <= min(0, every["share_low"].min())
    assert [ax.get_title() for ax in figure.axes] == ["a kind (384 targets)", "others (384 targets)"]
    plt.close(figure)


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ([0.3, 0.6], "By size 4 tokens carry 30 to 60 % of copies"),
        ([0.6, np.nan], "By size 4 tokens carry 60 % of copies"),
        ([np.nan, np.nan], "The share that few tokens carry, by size"),
    ],
)
def test_its_title_tells_the_range_over_sizes(shares: list[float], told: str) -> None:
    rows = pd.DataFrame(
        {
            "num_parameters": [1_000_000, 3_000_000], "rule": "leave_one_out_divergence", "k": 4,
            "share": shares, "share_low": np.array(shares) - 0.05, "share_high": np.array(shares) + 0.05,
        }
    )  # fmt: skip
    assert scale_figures.carried_title({"copies": rows}) == told


def test_the_notebook_tells_ends_of_repeats_from_other_tokens(
    folders: list[Path], truth: Truth, tmp_path: Path
) -> None:
    large, small, _ = map(str, folders)
    kinds = np.where(truth.targets["target_position"] % 4 == 0, "repeated bigram", "new")
    columns = {"word_part": "word start", "word_kind": "number", "part_of_speech": None}
    write_categories(truth.targets.assign(repetition=kinds, **columns), tmp_path / "data")
    parameters = {
        "results": large, "also_results": [small], "figures_folder": str(tmp_path / "figures"),
        "data": str(tmp_path / "data"),
    }  # fmt: skip
    notebook_execution.execute(NOTEBOOK, tmp_path / "figures", parameters, "made from")
    assert (tmp_path / "figures" / "carried_by_repeats.png").is_file()


def test_the_notebook_draws_sizes_and_states_its_conclusions(folders: list[Path], tmp_path: Path) -> None:
    large, small, early = map(str, folders)
    parameters = {"results": large, "also_results": [small, early], "figures_folder": str(tmp_path)}
    notebook_execution.execute(NOTEBOOK, tmp_path, parameters, "made from")
    written = {path.name for path in tmp_path.glob("*.p[dn][fg]")}
    assert written == {"model_scale.png", "model_scale.pdf"}
    cells = nbformat.read(tmp_path / "model_scale.ipynb", as_version=4).cells
    printed = "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))
    assert "32 tokens, pose: the gap is 0." in printed
    assert "at 1,000,000 and 3,000,000 parameters; the intervals" in printed
    assert "at 100 and 400 train step; the intervals" in printed
    assert "intervals of 95 % each" in printed
