"""Bins by another seed's gain, against sums done by hand, the planted truth and simulated luck."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from synthetic_results import KS, Truth

from analysis.drawing import TRAINED_LONG, Role
from analysis.gap import gaps as gain_bins
from analysis.gap import sparsity as sparsity_figures
from analysis.gap.gaps import NO_GAIN
from pipeline.cli import InputError

STUDIED = {1: "1", 2: "2", 4: "4", 8: "8", 16: "16", 32: "more than 16", 0: "no gain"}


@pytest.fixture(scope="module")
def bins(loss_differences: pd.DataFrame) -> pd.DataFrame:
    return gain_bins.gain_bins(loss_differences, "long-seed1")


@pytest.fixture(scope="module")
def measured(dependency_sparsity: pd.DataFrame) -> pd.DataFrame:
    rows = dependency_sparsity[dependency_sparsity["model"] == "long-seed0"]
    return rows.rename(columns={"rule": "measure"})


def test_edges_belong_to_the_bin_above() -> None:
    gains = [-0.5, -1e-9, 0.0, 0.1, 0.49, 0.5, 1.0, 7.0]
    frame = pd.DataFrame(
        {
            "model": "m",
            "document_id": "a",
            "chunk_index": 0,
            "target_position": range(8),
            "loss_difference": gains,
        }
    )
    found = gain_bins.gain_bins(frame, "m")["gain_bin"].astype(str)
    assert list(found) == [
        "below 0", "below 0", "0 to 0.1", "0.1 to 0.5", "0.1 to 0.5", "0.5 to 1", "1 and more", "1 and more",
    ]  # fmt: skip
    with pytest.raises(InputError, match="unknown model 'n'"):
        gain_bins.gain_bins(frame, "n")


def test_another_seeds_gain_falls_back_in_the_outer_bins() -> None:
    # Gains of two seeds: a common part of variance 1 and luck of variance 1 each; half of a deviation stays.
    generator = np.random.default_rng(0)
    common, luck = generator.normal(size=20_000), generator.normal(size=(2, 20_000))
    keys = {"document_id": np.arange(20_000) // 20, "chunk_index": 0, "target_position": np.arange(20_000)}
    frame = pd.concat(
        [pd.DataFrame({**keys, "model": f"seed{i}", "loss_difference": common + luck[i]}) for i in (0, 1)]
    )
    bins = gain_bins.gain_bins(frame, "seed1", [-np.inf, -1, 1, np.inf])
    table = gain_bins.gains_by_bin(frame, bins, "seed0").set_index("gain_bin")
    for gain_bin in ("below -1", "1 and more"):
        row = table.loc[gain_bin]
        assert row["loss_difference"] == pytest.approx(row["binning_gain"] / 2, rel=0.05)
        assert row["loss_difference_low"] < row["loss_difference"] < row["loss_difference_high"]
    assert table["num_targets"].sum() == 20_000


def test_effects_in_a_bin_are_those_of_its_targets(
    sparse_context_losses: pd.DataFrame, bins: pd.DataFrame, truth: Truth
) -> None:
    losses = sparse_context_losses[sparse_context_losses["model"] == "long-seed0"]
    table = gain_bins.effects_by_bin(losses, bins).set_index(["rule", "gain_bin", "k"])
    top = truth.targets["gain"] >= 1
    for rule, k in (("leave_one_out", 4), ("random", 16), ("nearest", 1)):
        row = table.loc[(rule, "1 and more", k)]
        assert row["num_targets"] == top.sum()
        planted = truth.recovered_gain(rule, k)[top].mean()
        # A blind rule is shown as it is, its small planted bonus included.
        bonus = 0.01 * np.log2(k + 1) if rule == "nearest" else 0.0
        assert row["effect_loss"] == pytest.approx(planted + bonus, abs=0.02)
        assert row["loss_difference"] == pytest.approx(truth.targets["gain"][top].mean(), abs=1e-4)
    assert table.loc[("leave_one_out", "1 and more", 16), "effect_fraction"] == pytest.approx(
        truth.recovered_gain("leave_one_out", 16)[top].sum() / truth.targets["gain"][top].sum(), abs=0.02
    )


def test_the_distribution_counts_every_target_once(
    measured: pd.DataFrame, truth: Truth, bins: pd.DataFrame
) -> None:
    table = gain_bins.sparsity_distribution(measured, KS).set_index("category")
    planted = truth.targets["needed_k"].map(STUDIED).value_counts(normalize=True)
    assert table["share"].to_dict() == pytest.approx(planted.reindex(table.index).to_dict())
    assert (table["num_targets"] == 384).all()
    in_bins = gain_bins.sparsity_distribution(measured, KS, bins)
    np.testing.assert_allclose(in_bins.groupby("gain_bin")["share"].sum(), 1)
    assert in_bins.groupby("gain_bin")["num_targets"].first().sum() == 384
    none = in_bins[(in_bins["gain_bin"] == "1 and more") & (in_bins["category"] == NO_GAIN)]
    assert none["share"].item() == 0


def test_shares_of_gaining_targets_rise_to_those_that_are_not_censored(
    measured: pd.DataFrame, truth: Truth
) -> None:
    table = gain_bins.shares_of_gaining_targets(measured, KS).set_index("k")
    needed = truth.targets.loc[truth.targets["needed_k"] > 0, "needed_k"]
    assert table["share"].to_dict() == pytest.approx({k: (needed <= k).mean() for k in KS})
    assert set(table["num_targets"]) == {len(needed)}


def test_what_is_drawn_is_the_table_of_every_model(measured: pd.DataFrame) -> None:
    shares = gain_bins.shares_of_gaining_targets(measured, KS)
    needed = pd.concat([shares.assign(model="a"), shares.assign(model="b")])
    roles = {name: Role(name, TRAINED_LONG, size, 256) for name, size in (("a", 460_000), ("b", 2_300_000))}
    figure = sparsity_figures.sparsity_figure(needed, roles)
    (ax,) = figure.axes
    for bar, (_, rows) in zip(ax.containers, needed.groupby("model"), strict=True):
        np.testing.assert_allclose(np.asarray(bar[0].get_ydata(), dtype=float), rows["share"])
    assert ax.get_ylim() == (0, 1)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "2", "4", "8", "16"]
    assert {text.get_text() for text in ax.texts} == {"2.3 M\nparameters", "0.46 M\nparameters"}
    plt.close(figure)


def test_sentences_are_read_off_the_tables(
    measured: pd.DataFrame, sparse_context_losses: pd.DataFrame, bins: pd.DataFrame
) -> None:
    shares = gain_bins.shares_of_gaining_targets(measured, KS)
    (sentence,) = gain_bins.share_sentences(shares)
    first, last = shares.iloc[0], shares.iloc[-1]
    assert (
        f"{first['share']:.3f} [{first['share_low']:.3f}, {first['share_high']:.3f}] need 1 far" in sentence
    )
    assert f"{last['share']:.3f} [{last['share_low']:.3f}, {last['share_high']:.3f}] at most 16" in sentence
    losses = sparse_context_losses[sparse_context_losses["model"] == "long-seed0"]
    effects = gain_bins.effects_by_bin(losses, bins)
    sentences = gain_bins.effect_sentences(effects)
    assert len(sentences) == len(effects) / len(KS)
    assert all((" beyond the null" in said) == ("leave_one_out" in said) for said in sentences)
