"""Windows that keep a share of what the longest context is worth: by hand, planted, and the program."""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible
from measured_documents import write_data
from written_results import write_rows

from analysis import needed_context as program
from analysis.drawing import model_labels
from analysis.needed_context import needed_context, site_of, windows_figure, windows_keeping
from pipeline.cli import InputError
from pipeline.results.files import read_parquet

LENGTHS = [8, 16, 32, 64]


def losses_of(
    of_lengths: list[float], num_documents: int, *, spread: float = 0.0, model: str = "m"
) -> pd.DataFrame:
    """Chunks of one document each with these losses, moved as a whole; the divergence is half of them."""
    moved = np.random.default_rng(0).normal(0, spread, num_documents)
    return pd.DataFrame(
        {
            "model": model, "document_id": f"{document:016x}", "chunk_index": 0, "context_length": length,
            "num_targets": 1 + document % 3, "mean_loss": loss + moved[document],
            "mean_divergence": (loss - of_lengths[-1]) / 2,
        }
        for document in range(num_documents)
        for length, loss in zip(LENGTHS, of_lengths, strict=True)
    )  # fmt: skip


def test_windows_by_hand() -> None:
    # Of 1 nat 16 tokens keep 0.5 and 32 keep 0.9: 0.7 lies halfway in log2 w.
    values_XJ = np.array([[5.0, 4.5, 4.1, 4.0], [4.0, 3.9, 4.3, 4.0], [5.0, 3.9, 4.2, 4.0]])
    found = [windows_keeping(values_XJ, np.array(LENGTHS), percent) for percent in (50, 70, 90, 95)]
    assert [values_X[0] for values_X in found] == pytest.approx([16, 2**4.5, 32, 2**5.5])
    assert all(np.isnan(values_X[1]) for values_X in found)  # 64 tokens are worth no more than 8
    assert [values_X[2] for values_X in found] == pytest.approx(  # more context harms: the first w counts
        [8 * 2 ** (share / 1.1) for share in (0.5, 0.7, 0.9, 0.95)]
    )


def test_every_number_of_a_group_is_a_mean_over_targets() -> None:
    chunks = losses_of([5.0, 4.5, 4.1, 4.0], 6, spread=2.0)
    chunks.loc[(chunks["document_id"].str.endswith("2")) & (chunks["context_length"] == 8), "mean_loss"] += 1
    table = needed_context(chunks)
    first = table.iloc[0]
    weight = 3 / 12  # of the third document's targets
    assert first["lost"] == pytest.approx(1 + weight)
    assert table["lost_share"][1] == pytest.approx(0.5 / (1 + weight))
    assert first["lost_low"] < first["lost"] < first["lost_high"]
    assert (first["num_targets"], first["num_documents"]) == (12, 6)
    by_divergence = table[table["criterion"] == "divergence"]
    assert by_divergence["lost"].tolist() == pytest.approx([0.5, 0.25, 0.05, 0])
    assert by_divergence["window_90"].tolist() == pytest.approx([32] * 4)  # without spread, exactly


def test_sources_have_windows_of_their_own_and_a_model_that_gains_nothing_has_none() -> None:
    near, far = losses_of([5, 4.0, 4.0, 4.0], 30), losses_of([5, 5, 5, 4.0], 30)
    far["document_id"] = "f" + far["document_id"].str[1:]
    sources = {
        of: "wiki.org" if of.startswith("f") else "news.net"
        for of in (*near["document_id"], *far["document_id"])
    }
    sources["f" + "0" * 15] = "rare.com"
    table = needed_context(pd.concat([near, far]), sources)
    windows = table[table["criterion"] == "loss"].groupby("source")["window_90"].first()
    expected = {"all": 2**5.8, "news.net": 2**3.9, "other sources": np.nan, "wiki.org": 2**5.9}
    assert windows.to_dict() == pytest.approx(expected, nan_ok=True)  # of a single document there is none
    worse = needed_context(losses_of([4.0, 4.0, 4.2, 5.0], 30).assign(mean_divergence=[3, 2, 1, 0] * 30))
    assert worse["window_90"].isna().all() and worse["lost_share"].isna().all()
    assert worse["lost"].iloc[0] == pytest.approx(-1)
    assert [site_of(url) for url in ("https://www.wiki.org/a/b", "novels")] == ["wiki.org", "novels"]


def arguments_of(results: Path, *words: str) -> argparse.Namespace:
    return program.parser().parse_args(
        ["--results", str(results), "--figures", str(results.parent / "figures"), *words]
    )


def test_the_program_prints_writes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    models = losses_of([5.0, 4.5, 4.1, 4.0], 30, spread=1), losses_of([4.0] * 4, 30, model="useless")
    write_rows(results, "length_losses", "length_losses", pd.concat(models))
    program.main(arguments_of(results))
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    assert ["m", "all", "loss", *["1.000", "[1.000,", "1.000]", "32", "[32,", "32]"]] in [
        row[:9] for row in rows
    ]
    assert ["16", "0.500", "[0.500,", "0.500]", "0.000", "[0.000,", "0.000]"] in rows
    table = read_parquet(tmp_path / "figures" / "needed_context.parquet").to_pandas()
    assert len(table) == 2 * 2 * 4 and (tmp_path / "figures" / "needed_context.png").is_file()
    figure = windows_figure(table[table["model"] == "m"], model_labels(results, "length_losses"))
    assert "takes 32 of them" in figure.texts[0].get_text()
    assert_legible(figure)
    write_data(tmp_path / "data")
    with pytest.raises(InputError, match="no document measured in .* has a URL in"):
        program.main(arguments_of(results, "--data", str(tmp_path / "data")))


def test_a_single_length_is_refused_and_no_worth_is_no_figure(tmp_path: Path) -> None:
    one = losses_of([4.0] * 4, 3).query("context_length == 8")
    with pytest.raises(InputError, match="'m' was measured with 8 tokens of context only"):
        needed_context(one)
    write_rows(tmp_path / "results", "length_losses", "length_losses", losses_of([4.0] * 4, 3))
    program.main(arguments_of(tmp_path / "results"))
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["needed_context.parquet"]
