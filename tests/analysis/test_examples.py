"""The example of a whole study runs on a tiny model, and its numbers are those of the losses."""

from pathlib import Path

import pytest
from hugging_face_families import make_model
from measured_documents import json_lines
from sparsity_length.analysis.examples import from_text_to_figure as example

from sparsity_length import influential_tokens
from sparsity_length.text.tokenizer import train_bpe


def test_a_study_in_one_file(tmp_path: Path) -> None:
    text = json_lines(0, 1)[20:300]
    tokenizer = train_bpe([text], 300)
    model = make_model("gpt_neox", vocab_size=tokenizer.vocabulary_size, max_position_embeddings=128)
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model/tokenizer.json").write_text(tokenizer.to_json())
    (tmp_path / "letter.txt").write_text(text)
    lengths = {"short_context_length": 4, "num_targets": 5}
    words = (str(tmp_path / "letter.txt"), str(tmp_path / "model"), str(tmp_path / "figure.png"))
    table = example.main(*words, **lengths)
    assert table.index.tolist() == list(example.KS) and [*table] == ["chosen", "recency", "random"]
    rows = influential_tokens(
        text, str(tmp_path / "model"), rule="recency", k=(4,), ablation="mask", **lengths
    )
    of_4 = rows[rows["rank"] == 4]
    saved = (of_4["short_context_loss"] - of_4["sparse_context_loss"]).sum()
    gain = (of_4["short_context_loss"] - of_4["long_context_loss"]).sum()
    assert table.loc[4, "recency"] == pytest.approx(saved / gain, rel=1e-3)
    assert (tmp_path / "figure.png").stat().st_size > 1000
