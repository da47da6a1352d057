"""The better half of documents by a score, and scores compared over paired seeds, by hand."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible
from quoted import REFERENCE, agree, by, interval

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import training_by_scores as benchmark

DOCUMENTS = pd.DataFrame({
    "num_tokens": [300, 400, 500, 600, 1200],
    "stake": [0.1, 0.5, 0.3, 0.2, 0.4],
    "mean_log2_k": [2.0, None, 1.0, 3.0, 4.0],
    "gzip_ratio": [0.1, 0.5, 0.4, 0.6, 0.9],
})  # fmt: skip


@pytest.mark.parametrize(
    ("score", "taken"),
    [
        (
            "stake",
            [1],
        ),  # half is 1,500 tokens: after 400 the next, of 1,200, is too long, and nothing is skipped
        ("num_tokens", [4]),
        ("mean_log2_k", [0, 2, 3]),
        ("gzip_ratio", [0, 1, 2]),
    ],
)
def test_the_better_half_in_tokens(score: str, taken: list[int]) -> None:
    half = benchmark.better_half(DOCUMENTS, score, 0)
    assert half.nonzero()[0].tolist() == taken


def test_random_halves_differ_between_seeds_alone() -> None:
    many = pd.DataFrame({"num_tokens": [1] * 100})
    first, again, other = (benchmark.better_half(many, "random", seed) for seed in (0, 0, 1))
    assert first.sum() == other.sum() == len(many) / 2
    assert (first == again).all() and not (first == other).all()


def test_scores_are_compared_over_paired_seeds() -> None:
    gains = {"random": [0.1, 0.2], "stake": [0.2, 0.4], "num_tokens": [0.1, 0.1]}
    rows = [
        {"score": score, "seed": seed, "gain": gain}
        for score, of_seeds in gains.items()
        for seed, gain in enumerate(of_seeds)
    ]
    table = benchmark.compared(pd.DataFrame(rows), "gain", "random").set_index("score")
    assert table.loc["stake", "difference"] == pytest.approx(0.15)
    assert table.loc["num_tokens", "difference"] == pytest.approx(-0.05)
    # Student's 97.5 % point of one degree of freedom is 12.706; the error of both is 0.05.
    assert table.loc["stake", "difference_high"] == pytest.approx(0.15 + 12.706 * 0.05, abs=1e-3)
    assert table.loc["stake", "holm_p"] == pytest.approx(2 * table.loc["stake", "p"])
    figure = benchmark.scores_figure(table.reset_index())
    assert_legible(figure)


def test_the_page_of_scores() -> None:
    _, _, text = Path("analysis/METHODS.md").read_text(encoding="utf-8").partition("## Scores of documents")
    text, _, _ = text.partition("\n## ")
    trainings = pd.read_parquet(REFERENCE / "training_by_scores.parquet")
    gain, loss, to_stake = (
        by(benchmark.compared(trainings, value, other), "score")
        for value, other in (("gain", "random"), ("loss", "random"), ("gain", "stake"))
    )
    quoted = re.findall(r"^\| (?:`(\w+)`|random)[^|]*\|(.*)\|$", text, re.MULTILINE)
    assert [score or "random" for score, _ in quoted[:3]] == ["num_tokens", "mean_distance", "stake"]
    assert len(quoted) == len(gain)
    for score, cells in quoted:
        mean, *differences = cells.split("|")
        agree(mean, gain[score or "random"]["gain"])
        if score:
            agree(differences[0], *interval(gain[score], "difference"))
            agree(differences[1], *interval(loss[score], "difference"))
    helped = [score for score, row in gain.items() if row["holm_p"] < 0.05]
    assert set(helped) == {"mean_log2_k", "gzip_ratio"}
    (holm,) = re.findall(r"downwards \(p = (\S+ and \S+)\)", text)
    agree(holm, gain["mean_log2_k"]["holm_p"], gain["gzip_ratio"]["holm_p"])
    (length,) = re.findall(r"which gives (\S+ \[.*?\]) more", text)
    agree(length, *interval(to_stake["num_tokens"], "difference"))
    (middle,) = re.findall(r"gzip, which gives (\S+ \[.*?\]) less", text)
    agree(
        middle, *(-number for number in np.array(interval(to_stake["gzip_ratio"], "difference"))[[0, 2, 1]])
    )


@pytest.mark.slow
def test_it_trains_measures_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = Path("LICENSE").read_text(encoding="utf-8").split()
    texts = [" ".join(words[start:] + words[:start]) for start in range(0, 1200, 300)]
    lines = [{"text": text, "id": str(place)} for place, text in enumerate(texts)]
    held_out = [json.dumps({"text": text[::-1]}) for text in texts[:2]]
    (tmp_path / "held-out.jsonl").write_text("\n".join(held_out))
    pool, scores = tmp_path / "pool", tmp_path / "scores"
    source = tmp_path / "pool.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)))
    benchmark._run("tokenize_c4", "--out", pool, "--source", source, "--evaluation-source",
                   tmp_path / "held-out.jsonl", "--tokenizer", "bpe:320")  # fmt: skip
    scores.mkdir()
    scored = [
        line | {"metadata": {"num_tokens": 900, "stake": float(place)}} for place, line in enumerate(lines)
    ]
    (scores / "document_scores.jsonl").write_text("\n".join(map(json.dumps, scored)))
    small = [
        "max_duration=2",
        "save_interval=2",
        "eval_interval=2",
        "model.d_model=8",
        "model.n_heads=1",
        "scheduler.t_warmup=1",
    ]
    monkeypatch.setattr(benchmark, "TRAINING", [*benchmark.TRAINING, *small])
    asked = [
        "--scores", scores, "--pool", pool, "--held-out", tmp_path / "held-out.jsonl", "--by", "random",
        "stake", "--seeds", 0, 1, "--out", tmp_path / "out",
    ]  # fmt: skip
    arguments = benchmark.parser().parse_args(list(map(str, asked)))
    benchmark.main(arguments)
    table = (tmp_path / "out" / "training_by_scores.parquet").read_bytes()
    halves = (tmp_path / "out" / "halves" / "stake.jsonl").read_text().splitlines()
    assert {json.loads(line)["text"] for line in halves} == set(texts[2:])
    monkeypatch.setattr(benchmark, "_run", None)  # nothing is left to run
    benchmark.main(arguments)
    assert (tmp_path / "out" / "training_by_scores.parquet").read_bytes() == table
    assert len(pd.read_parquet(tmp_path / "out" / "training_by_scores.parquet")) == 4
