"""Windows that keep a share of what the longest context is worth: by hand, planted, and the program."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible
from measured_documents import write_data
from written_results import write_rows

from analysis import needed_context as program
from analysis.drawing import model_labels
from analysis.needed_context import needed_context, site_of, windows_figure, windows_keeping
from analysis.read import MeasuredText
from pipeline.cli import InputError
from pipeline.results.files import read_parquet

LENGTHS = [8, 16, 32, 64]
FALLING = [5.0, 4.5, 4.1, 4.0]


def losses_of(
    of_lengths: list[float], num_documents: int, *, spread: float = 0.0, model: str = "m"
) -> pd.DataFrame:
    """Chunks of one document each with these losses, moved as a whole; the divergence is half of them."""
    moved = np.random.default_rng(0).normal(0, spread, num_documents)
    return pd.DataFrame(
        {
            "model": model,
            "document_id": f"{document:016x}",
            "chunk_index": 0,
            "context_length": length,
            "num_targets": 1 + document % 3,
            "mean_loss": loss + moved[document],
            "mean_divergence": (loss - of_lengths[-1]) / 2,
        }
        for document in range(num_documents)
        for length, loss in zip(LENGTHS, of_lengths, strict=True)
    )


def test_windows_by_hand() -> None:
    # Of 1 nat 16 tokens keep 0.5 and 32 keep 0.9: 0.7 lies halfway in log2 w.
    values_XJ = np.array([FALLING, [4.0, 3.9, 4.3, 4.0], [5.0, 3.9, 4.2, 4.0]])
    found = [windows_keeping(values_XJ, np.array(LENGTHS), percent) for percent in (50, 70, 90, 95)]
    assert [values_X[0] for values_X in found] == pytest.approx([16, 2**4.5, 32, 2**5.5])
    assert all(np.isnan(values_X[1]) for values_X in found)  # 64 tokens are worth no more than 8
    assert [values_X[2] for values_X in found] == pytest.approx(  # more context harms: the first w counts
        [8 * 2 ** (share / 1.1) for share in (0.5, 0.7, 0.9, 0.95)]
    )


def test_every_number_of_a_group_is_a_mean_over_targets() -> None:
    chunks = losses_of(FALLING, 6, spread=2.0)
    chunks.loc[(chunks["document_id"].str.endswith("2")) & (chunks["context_length"] == 8), "mean_loss"] += 1
    table = needed_context(chunks)
    # of the third document's targets
    first = table.iloc[0]
    weight = 3 / 12
    assert first["lost"] == pytest.approx(1 + weight)
    assert table["lost_share"][1] == pytest.approx(0.5 / (1 + weight))
    assert first["lost_low"] < first["lost"] < first["lost_high"]
    assert (first["num_targets"], first["num_documents"]) == (12, 6)
    by_divergence = table[table["criterion"] == "divergence"]
    assert by_divergence["lost"].tolist() == pytest.approx([0.5, 0.25, 0.05, 0])
    assert by_divergence["window_90"].tolist() == pytest.approx([32] * 4)  # without spread, exactly


def test_sources_have_windows_of_their_own() -> None:
    near = losses_of([5, 4.0, 4.0, 4.0], 30)
    far = losses_of([5, 5, 5, 4.0], 30)
    far["document_id"] = "f" + far["document_id"].str[1:]
    sources = dict.fromkeys(near["document_id"], "news.net") | dict.fromkeys(far["document_id"], "wiki.org")
    sources["f" + "0" * 15] = "rare.com"
    table = needed_context(pd.concat([near, far]), sources)
    windows = table[table["criterion"] == "loss"].groupby("source")["window_90"].first()
    expected = {"all": 2**5.8, "news.net": 2**3.9, "other sources": np.nan, "wiki.org": 2**5.9}
    assert windows.to_dict() == pytest.approx(expected, nan_ok=True)  # of a single document there is none
    assert [site_of(url) for url in ("https://www.wiki.org/a/b", "novels")] == ["wiki.org", "novels"]


def test_kinds_of_tokens_have_windows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three targets per chunk: numbers need 16 tokens, the names between them 64.
    of_number = [5.0, 4.0, 4.0, 4.0]
    of_name = [5.0, 5.0, 5.0, 4.0]
    chunks = pd.DataFrame(
        {
            "model": "m",
            "document_id": f"{document:016x}",
            "chunk_index": 0,
            "context_length": length,
            "num_targets": 3,
            "mean_loss": (2 * number + name) / 3,
            "mean_divergence": 0.0,
            "losses": [number, name, number],
            "divergences": [number - 4, name - 4, number - 4],
        }
        for document in range(30)
        for length, number, name in zip(LENGTHS, of_number, of_name, strict=True)
    )
    kinds = ["number", "name", "number"]
    of_text = pd.DataFrame(
        {
            "document_id": np.repeat(chunks["document_id"].unique(), 3),
            "chunk_index": 0,
            "target_position": [61, 62, 63] * 30,
            "word_kind": kinds * 30,
            "repetition": "new",
        }
    )
    asked = []

    def categories(text: MeasuredText) -> pd.DataFrame:
        asked.append(text.short_context_length)
        return of_text

    monkeypatch.setattr("analysis.tokens.kinds.categories_of_targets", categories)
    of_each = program.of_kinds(chunks, MeasuredText(cast(Any, None), {}))
    assert asked == [8]
    table = needed_context(chunks, kinds=of_each)
    by_loss = table[table["criterion"] == "loss"].groupby("source")[["window_90", "num_targets"]].first()
    assert by_loss["window_90"].to_dict() == pytest.approx(
        {"all": 2 ** (5 + 0.7), "new": 2 ** (5 + 0.7), "number": 2**3.9, "name": 2**5.9}
    )
    assert by_loss["num_targets"].to_dict() == {"all": 90, "new": 90, "number": 60, "name": 30}
    rare = of_each[(of_each["source"] != "name") | (of_each["document_id"] < f"{19:016x}")]
    assert "name" not in set(needed_context(chunks, kinds=rare)["source"])


def test_a_model_that_gains_nothing_has_no_window_and_one_length_is_refused() -> None:
    worse = needed_context(losses_of([4.0, 4.0, 4.2, 5.0], 30).assign(mean_divergence=[3, 2, 1, 0] * 30))
    assert worse["window_90"].isna().all() and worse["lost_share"].isna().all()
    assert worse["lost"].iloc[0] == pytest.approx(-1)
    with pytest.raises(InputError, match="'m' was measured with 8 tokens of context only"):
        needed_context(losses_of(FALLING, 3).query("context_length == 8"))


def test_the_program_prints_writes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--results", str(tmp_path / "results"), "--figures", str(tmp_path / "figures")]
    for models in (losses_of([4.0] * 4, 30, model="useless"), losses_of(FALLING, 30, spread=1)):
        write_rows(tmp_path / "results", "length_losses", "length_losses", models)
        program.main(program.parser().parse_args(words))
        is_drawn = (tmp_path / "figures" / "needed_context.png").is_file()
        assert is_drawn == ("m" in set(models["model"]))
    printed = " ".join(capsys.readouterr().out.split())
    assert "m all loss 1.000 [1.000, 1.000] 32 [32, 32]" in printed
    assert "m 16 0.500 [0.500, 0.500]" in printed and "useless 16 0.000 [0.000, 0.000]" in printed
    table = read_parquet(tmp_path / "figures" / "needed_context.parquet").to_pandas()
    assert len(table) == 2 * 2 * 4
    labels = model_labels(tmp_path / "results", "length_losses")
    figure = windows_figure(table[table["model"] == "m"], labels)
    assert "need 32 of 64 tokens" in figure.texts[0].get_text()
    assert_legible(figure)
    write_data(tmp_path / "data")
    with pytest.raises(InputError, match="has no losses of single targets"):
        program.main(program.parser().parse_args([*words, "--data", str(tmp_path / "data")]))
