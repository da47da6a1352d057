"""Texts are chosen by hash, and long ones give a passage of their middle."""

import json
from pathlib import Path

import pytest

from analysis import choose_texts
from pipeline.cli import InputError
from pipeline.text.sources import Document


def test_texts_by_hash_and_passages_of_the_middle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"text {number} " + "x" * 40 for number in range(6)] + ["short"]
    novel = "".join(f"paragraph {number:04d}\n" for number in range(100))
    for name, of_file in {"web": texts, "novels": [novel, novel[::-1]]}.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in of_file)
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    words = ["--source", *(f"{name}={tmp_path / name}.jsonl" for name in ("web", "novels"))]
    words += ["--least-characters", "20", "--distant-characters", "20", "--most-characters", "150"]

    def chosen(*further: str) -> list[dict[str, str]]:
        out = tmp_path / "out" / "texts.jsonl"
        arguments = choose_texts.parser().parse_args([*words, *further, "--out", str(out)])
        choose_texts.main(arguments)
        return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]

    rows = chosen("--per-source", "1")
    assert [row["url"] for row in rows] == ["web", "web", "novels", "novels"]
    ids = [Document.from_record(row).document_id for row in rows]
    first = sorted(Document.from_record({"text": text}).document_id for text in texts[:6])
    assert ids[:2] == first[:2] and ids[2] < ids[3]
    assert capsys.readouterr().out == f"--distant-documents {ids[1]} {ids[3]}\n"
    assert any(row["text"].startswith("paragraph 0046\n") and len(row["text"]) == 150 for row in rows)
    left = {
        Document.from_record(row).document_id for row in chosen("--per-source", "1", "--leave-out-first", "0")
    }
    assert left == set(ids)
    with pytest.raises(InputError, match="web"):
        chosen("--per-source", "6")
