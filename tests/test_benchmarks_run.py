"""The benchmarks run at tiny size, and what they count and refuse is right."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from accelerate.state import AcceleratorState
from hugging_face_families import make_model
from measured_documents import write_checkpoint, write_data
from olmo.model import OLMo

sys.path.append(str(Path(__file__).resolve().parent / "benchmarks"))

import bfloat16_agreement
import explain_accuracy
import gpu
import leave_one_out
import matrix_product_peak
import method_seconds
import screen

from analysis.rules.benchmark import read_seconds
from pipeline.cli import InputError
from pipeline.measuring.flags import ContextLengths
from pipeline.text.sources import first_passages
from pipeline.text.tokenizer import train_bpe

TINY = (
    "--layers 2 --width 32 --heads 4 --vocabulary 48 --long-context-lengths 24 --short-context-length 4"
    " --targets-per-chunk 5 --sample-tokens 256 --repeats 1 --threads 1"
)


@pytest.fixture(autouse=True)
def quick_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_product_peak, "MIN_SECONDS", 0.0)


def run(benchmark: Any, *words: object) -> None:
    benchmark.main(benchmark.parser().parse_args([str(word) for word in words]))


@pytest.mark.slow
def test_every_way_gives_the_same_numbers_and_a_wrong_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    run(leave_one_out, *TINY.split(), "--out", out)
    rows = json.loads(out.read_text())["rows"]
    assert [row["way"] for row in rows] == [
        "ours, float32", "all-targets loop, float32", "forward per pair, float32",
        "captum FeatureAblation, float32", "ours, bfloat16", "all-targets loop, bfloat16",
    ]  # fmt: skip
    assert all(row["milliseconds_per_pair"] > 0 and row["fraction_of_peak"] > 0 for row in rows)
    out.unlink()
    right = leave_one_out.Ours.influences

    def wrong(self: leave_one_out.Ours, removed: list[int]) -> np.ndarray:
        found = right(self, removed).copy()
        found[-1, 0] += 0.05 * np.nanstd(found)
        return found

    monkeypatch.setattr(leave_one_out.Ours, "influences", wrong)
    with pytest.raises(InputError, match="influence of token 0 on target 4"):
        run(leave_one_out, *TINY.split(), "--out", out)
    assert not out.exists()


def test_what_counting_predicts() -> None:
    # L = 6, s = 1, m = 2: 5 rows; targets 4 and 5 have 3 and 4 far tokens. Whole passes: 4 x 5 = 20
    # token-forwards; suffixes after rows 0, 1, 2, 3: 4 + 3 + 2 + 1 = 10.
    size = leave_one_out.ModelSize(1, 4, 1, 7, 2)
    problem = leave_one_out.Problem(size, ContextLengths(1, 6, 2))
    assert (problem.num_pairs, leave_one_out.predicted_gain(problem)) == (7, 2.0)
    loop = leave_one_out.AllTargetsLoop(problem)
    block = loop.olmo.transformer.blocks[0]
    matrices = (block.att_proj, block.attn_out, block.ff_proj, block.ff_out)
    weights = sum(matrix.weight.numel() for matrix in matrices)
    # 20 rows, 4 passes x (1 + 2 + 3 + 4 + 5) edges of width 4, 7 logits of 7 words; 2 or 4 operations each
    assert leave_one_out.flops_of(loop) == 2 * 20 * weights + 4 * 60 * 4 + 2 * 7 * 4 * 7
    # Ours: keys and values at 5 + 10 rows; the rest at 5 x 2 rows, which see 4 + 5 tokens.
    keys_and_values = 2 * 4 * 4
    rest = 2 * 10 * (weights - keys_and_values) + 4 * 5 * 9 * 4
    assert leave_one_out.flops_of(leave_one_out.Ours(problem)) == 2 * 15 * keys_and_values + rest + 2 * 7 * 28


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_runs_on_a_cpu_and_a_case_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gpu.TOY, "compile_backend", "abacus")
    run(gpu, "--device", "cpu", "--toy", "--threads", 1, "--out", tmp_path / "out.json")
    AcceleratorState._reset_state(reset_partial_state=True)  # or other trainings would have its precision
    report = json.loads((tmp_path / "out.json").read_text())
    assert [(row["way"], row["long_context_length"]) for row in report["engine"]] == [
        ("all-targets loop, float32", 24), ("ours, 64 a batch, float32", 24),
        ("all-targets loop, bfloat16", 24), ("ours, 64 a batch, bfloat16", 24),
        ("all-targets loop, bfloat16", 32), ("ours, 64 a batch, bfloat16", 32),
    ]  # fmt: skip
    plain, compiled = report["training"]
    assert plain["ratio"] == pytest.approx(plain["tokens_per_second"] / plain["plain_tokens_per_second"])
    assert compiled["is_compiled"] and "abacus" in compiled["failed"]


def test_bfloat16_agreement_and_the_seconds_of_methods(
    tmp_path: Path, make_olmo: Callable[..., OLMo]
) -> None:
    (tmp_path / "data").mkdir()
    data, model = write_data(tmp_path / "data"), write_checkpoint(tmp_path / "run", make_olmo())
    words = ["--checkpoint", model, "--data", data, "--out", tmp_path / "out.json", "--targets-per-chunk", 2]
    sizes = ["--short-context-length", 1, "--long-context-length", 12]
    run(bfloat16_agreement, *words, *sizes, "--threads", 1)
    report = json.loads((tmp_path / "out.json").read_text())
    for row in report["far_contexts"].values():
        assert 0 < row["influence_error_rms_nats"] < 0.1 * row["influence_rms_nats"]
        assert 0.8 < row["rank_correlation"] <= 1  # ranks may survive what moves every influence
    run(screen, *words[:4], *sizes[:2], "--targets-per-chunk", 2, "--long-context-lengths", 12,
        "--lengths-without-exact", 11, "--screens", 4, 9, "--out", tmp_path / "screen.csv")  # fmt: skip
    table = pd.read_csv(tmp_path / "screen.csv", index_col=["length", "screen"])
    assert table.loc[12, 9]["recall"] == table.loc[12, 9]["token_forwards_ratio"] == 1
    of_screen_only = table.loc[11, 4]
    assert 0 < table.loc[12, 4]["recall"] < 1 and of_screen_only["peak_gib"] > 0
    assert of_screen_only["null_token_forwards"] > of_screen_only["token_forwards"] > 0
    rules = ("surrogate", "learned_attention", "greedy", "nearest")
    run(method_seconds, *words, *sizes, "--max-documents", 2, "--k", 2, "--rules", *rules)
    seconds = read_seconds(tmp_path / "out.json")
    assert seconds.keys() == set(rules) and all(value > 0 for value in seconds.values())


def test_the_search_is_compared_with_exact_leave_one_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = train_bpe(first_passages(20_000), 300)
    make_model("llama", vocab_size=tokenizer.vocabulary_size).save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text(tokenizer.to_json())
    words = ["--model", tmp_path / "model", "--length", 64, "--texts", 1, "--out", tmp_path / "a.jsonl"]
    for _ in range(2):  # the second reads what the first wrote
        run(explain_accuracy, *words)
        said = capsys.readouterr().out
        assert said.startswith("1 texts of 64 tokens: ") and "top 1 " in said
    (row,) = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    assert 0 <= row["top_1"] <= 1 and row["exact_recovered"] >= row["recovered"] - 0.5
