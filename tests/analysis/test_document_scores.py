"""Scores of documents: by hand, and the program on what the stages measured of a text."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from measured_documents import TARGET_POSITIONS, measure, write_checkpoint, write_data
from olmo.model import OLMo

from analysis import document_scores as program
from analysis.document_scores import RULE, document_scores
from analysis.read import MeasuredText
from pipeline import influential_tokens, loss_differences
from pipeline.results.files import read_parquet

KEYS = ["document_id", "chunk_index", "target_position"]


def test_scores_by_hand() -> None:
    targets = pd.DataFrame([("a", 0, 8), ("a", 0, 9), ("b", 0, 8)], columns=KEYS)
    losses = targets.assign(
        short_context_loss=[4.0, 2.0, 3.0], long_context_loss=[1.0, 2.0, 2.5], specific_gain=[2.0, 0.0, 1.5],
        short_context_divergence=[0.5, 0.3, 0.2],
    )  # fmt: skip
    sparsity = targets[:2].assign(half_sparsity=pd.array([2, None], "Int64"), mean_log2_k=[1.0, np.nan])
    chosen = pd.concat([targets[:1].assign(rank=rank, distance=[5 * rank]) for rank in (1, 2, 3)])
    texts = {"a": "la" * 200, "b": "xyz"}
    second, first = document_scores(losses, chosen, sparsity, texts).to_dict("records")
    assert (first["document_id"], second["document_id"]) == ("a", "b")
    found = [
        first[name] for name in ("stake", "gain", "long_filter", "prolong_difference", "key_token_share")
    ]
    assert found == pytest.approx(
        [1.0, 1.5, 0.4, 1 - np.exp(-1.5), 0.5]
    )  # 3 nats gained, 1 left: a key token
    assert (first["mean_log2_k"], first["mean_distance"], first["num_targets"]) == (1.0, 7.5, 2)
    assert np.isnan(second["mean_log2_k"]) and np.isnan(second["mean_distance"])
    assert first["gzip_ratio"] < 0.2 < 1 < second["gzip_ratio"]
    without = document_scores(losses, chosen[:0], sparsity[:0], texts)
    assert without["mean_distance"].isna().all() and without["stake"].tolist() == [1.5, 1.0]


def test_the_program_writes_both_files(
    tmp_path: Path, make_olmo: Callable[..., OLMo], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    class Tokenizer:
        def pieces(self, token_ids: list[int]) -> list[str]:
            return [f"{token_id} " for token_id in token_ids]

    monkeypatch.setattr(MeasuredText, "tokenizer", Tokenizer())
    write_data(tmp_path / "data")
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    words = ["--results", str(tmp_path / "results"), "--out", str(tmp_path / "scores")]
    for stage, flags in ((loss_differences, []), (influential_tokens, ["--rules", RULE])):
        measure(stage, tmp_path, *flags)
        program.main(program.parser().parse_args(words))
        table = read_parquet(tmp_path / "scores" / "document_scores.parquet").to_pandas()
        assert set(table["document_id"]) == {document for document, _, _ in TARGET_POSITIONS}
        assert table["mean_distance"].notna().any() == bool(flags)
    lines = (tmp_path / "scores" / "document_scores.jsonl").read_text().splitlines()
    row, line = table.to_dict("records")[0], json.loads(lines[0])
    assert line["id"] == row["document_id"] and len(line["text"].split()) == row["num_tokens"]
    assert line["metadata"]["stake"] == row["stake"]
    assert "stake                       3                           1.0000" in capsys.readouterr().out
