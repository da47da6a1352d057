"""The benchmark scripts run, on a tiny model, and refuse to time numbers that differ from ours."""

import importlib
import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from measured_documents import write_checkpoint, write_data
from olmo.model import OLMo

BENCHMARKS = Path(__file__).resolve().parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

import accounting
import agreement
import bfloat16_agreement
import denormals
import explain_seconds
import gpu
import leave_one_out
import matrix_product_peak
import method_seconds
import variants
import worker
from problem import Problem

from analysis.rules.benchmark import read_seconds
from pipeline.cli import InputError
from pipeline.measuring.flags import ContextLengths

TINY = [
    "--layers", "2", "--width", "32", "--heads", "4", "--vocabulary", "48", "--mlp-ratio", "2",
    "--long-context-lengths", "24", "32", "--short-context-length", "4", "--targets-per-chunk", "5",
    "--init-std", "0.3", "--sample-tokens", "256", "--repeats", "2",
]  # fmt: skip
NUM_PAIRS_AT_32 = 23 + 24 + 25 + 26 + 27


class WorkerHere:
    """A `Worker` without a process."""

    def __init__(self, name: worker.VariantName, problem: Problem) -> None:
        self.name, self._answers = name, worker.Answers(name, problem)

    def ask(self, question: str) -> Any:
        answer = self._answers(question)
        if isinstance(answer, str):
            raise worker.UnavailableError(answer)
        return answer

    def stop(self) -> None: ...


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leave_one_out, "Worker", WorkerHere)
    monkeypatch.setattr(matrix_product_peak, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(leave_one_out, "SQUARES", ((64, 64, 64),))


def arguments_for(folder: Path, *flags: str) -> Namespace:
    return leave_one_out.parser().parse_args(
        [*TINY, "--threads", str(torch.get_num_threads()), "--out", str(folder / "out.json"), *flags]
    )


@pytest.mark.usefixtures("without_processes")
def test_every_way_gives_the_same_numbers_and_all_of_them_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_one_out.main(arguments_for(tmp_path, "--tolerance", "0.001"))
    report = json.loads((tmp_path / "out.json").read_text())
    of_32 = report["lengths"][1]
    assert of_32["num_pairs"] == NUM_PAIRS_AT_32
    assert {
        "ours, float32", "ours, bfloat16", "all-targets loop, float32", "all-targets loop, bfloat16",
        "same, last layer at targets, float32", "forward per pair, float32",
    } <= of_32["variants"].keys()  # fmt: skip
    for variant in of_32["variants"].values():
        assert len(variant["timed_seconds"]) == 2
        assert variant["milliseconds_per_pair"] * NUM_PAIRS_AT_32 == pytest.approx(
            1000 * variant["chunk_seconds"]
        )
    # 1 too: on some processors bfloat16 moves no influence past another. That it moves them is tested below.
    assert 0.5 < of_32["bfloat16_agreement"]["rank_correlation"] <= 1
    shown = capsys.readouterr().out
    assert "ℓ = 32, s = 4, m = 5: 125 pairs" in shown
    assert "times as much at ℓ = 32 as at 24" in shown


@pytest.mark.usefixtures("without_processes")
@pytest.mark.parametrize("when", ["before timing", "while timed"])
def test_a_wrong_influence_is_refused_and_nothing_is_shown(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = variants.leave_each_out

    def wrong(*arguments: Any, **keywords: Any) -> Any:
        left_out = exact(*arguments, **keywords)
        influence_TF = left_out.influence_TF.copy()
        is_check = len(keywords["removed_rows_R"]) == worker.NUM_CHECKED
        if is_check == (when == "before timing"):
            influence_TF[-1, 0] += 0.05 * np.nanstd(influence_TF)
        return replace(left_out, influence_TF=influence_TF)

    monkeypatch.setattr(variants, "leave_each_out", wrong)
    with pytest.raises(InputError, match="influence of token 0 on target 4"):
        leave_one_out.main(arguments_for(tmp_path, "--without-peers"))
    assert not (tmp_path / "out.json").exists()
    assert capsys.readouterr().out == ""


def test_what_counting_predicts() -> None:
    # L = 6, s = 1, m = 2: 5 rows; targets 4 and 5 have 3 and 4 far tokens. Whole passes: 4 x 5 = 20
    # token-forwards; suffixes after rows 0, 1, 2, 3: 4 + 3 + 2 + 1 = 10.
    lengths = ContextLengths(short_context_length=1, long_context_length=6, targets_per_chunk=2)
    sizes = accounting.ModelSizes(
        num_layers=1, width=1, vocabulary_size=1, block_weights=3, key_value_weights=2
    )
    assert accounting.num_pairs(lengths) == 7
    assert accounting.predicted_gain(lengths) == 2.0
    assert accounting.work_of_suffixes(sizes, lengths).token_forwards == 5 + 10
    assert accounting.work_of_pairs(sizes, lengths).token_forwards == 3 * 4 + 4 * 5
    whole = accounting.work_of_whole_passes(sizes, lengths, last_layer_at_targets=False)
    # 20 rows x 3 weights, 4 passes x (1 + 2 + 3 + 4 + 5) edges, 7 logits; 2 or 4 operations each
    assert (whole.token_forwards, whole.flops) == (20, 2 * 60 + 4 * 60 + 2 * 7)
    at_targets = accounting.work_of_whole_passes(sizes, lengths, last_layer_at_targets=True)
    # keys and values at 20 rows x 2 weights; the other weight at 8 rows; 4 x (4 + 5) edges
    assert at_targets.flops == 2 * 40 + 2 * 8 + 4 * 36 + 2 * 7
    for long, gain in ((256, 1.60), (512, 1.78), (2048, 1.94)):
        assert round(accounting.predicted_gain(ContextLengths(64, long, 64)), 2) == gain


def test_agreement_by_hand() -> None:
    exact_TF = np.array([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, np.nan]])
    other_TF = np.array([[4.0, 2.0, 3.0, 1.0], [1.0, 2.0, 3.0, np.nan]])
    assert agreement.top_k_overlap(exact_TF, other_TF, k=2) == 0.75
    # one swap of neighbours among four: 1 - 6 x 2 / (4 x 15) = 0.8
    assert agreement.rank_correlation(exact_TF, other_TF) == pytest.approx(0.9)


def test_the_matrix_product_peak_is_that_of_one_of_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {(1, 2, 3): 5.0, (4, 5, 6): 9.0}
    monkeypatch.setattr(matrix_product_peak, "product_flops_per_second", lambda shape, *_: rates[shape])
    peak = matrix_product_peak.matrix_product_peak("bfloat16", torch.device("cpu"), list(rates))
    assert (peak.flops_per_second, peak.shape, peak.dtype) == (9.0, (4, 5, 6), "bfloat16")


def test_what_denormal_numbers_cost_is_timed_on_the_command_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path / "data", train_token_ids=[[*range(1, 13), *range(7, 19)]])
    config = Path(__file__).resolve().parents[1] / "olmo_configs" / "tiny.yaml"
    sizes = ["train_context_length=8", "global_train_batch_tokens=16", "device_train_microbatch_tokens=16"]
    words = [config, "--data", tmp_path / "data", "--save-folder", tmp_path / "run", "precision=fp32", *sizes]
    monkeypatch.setattr(sys, "argv", ["denormals.py", *map(str, words)])
    denormals.main()
    AcceleratorState._reset_state(reset_partial_state=True)
    report = json.loads(capsys.readouterr().out)
    of_training = report["loss_and_gradients"]
    assert of_training["ratio"] == of_training["seconds_with"] / of_training["seconds_flushed"]
    assert of_training["result"] > 0 and report["loss_without_gradients"]["result"] > 0
    assert not (tmp_path / "run").exists()


def test_a_result_that_denormal_numbers_change_is_refused() -> None:
    smallest = torch.tensor(torch.finfo(torch.float32).smallest_normal)
    with pytest.raises(SystemExit, match="differ"):
        denormals.medians(lambda: float(smallest / 2))


def test_bfloat16_agreement_runs(tmp_path: Path, make_olmo: Callable[..., OLMo]) -> None:
    (tmp_path / "data").mkdir()
    data = write_data(tmp_path / "data")
    run = write_checkpoint(tmp_path / "run", make_olmo())
    out = tmp_path / "out.json"
    words = [
        "--checkpoint", run, "--data", data, "--out", out, "--threads", torch.get_num_threads(),
        "--short-context-length", 1, "--long-context-length", 12, "--targets-per-chunk", 2,
    ]  # fmt: skip
    bfloat16_agreement.main(bfloat16_agreement.parser().parse_args([str(word) for word in words]))
    report = json.loads(out.read_text())
    assert report["num_chunks"] == 3
    for row in report["far_contexts"].values():
        fractions = row["recovered_fraction"]
        assert row["difference"] == pytest.approx(fractions["bfloat16"] - fractions["float32"])
        assert fractions["float32"] != fractions["bfloat16"]
        assert 0 < row["influence_error_rms_nats"] < 0.1 * row["influence_rms_nats"]
        assert 0.8 < row["rank_correlation"] <= 1  # ranks may survive what moves every influence
    assert report["far_contexts"].keys() == {"own", "other_document"}


def test_method_seconds_times_every_rule(tmp_path: Path, make_olmo: Callable[..., OLMo]) -> None:
    (tmp_path / "data").mkdir()
    data, run = write_data(tmp_path / "data"), write_checkpoint(tmp_path / "run", make_olmo())
    words = ["--checkpoint", run, "--data", data, "--out", tmp_path / "out.json", "--max-documents", 2,
             "--short-context-length", 2, "--long-context-length", 12, "--targets-per-chunk", 2, "--k", 2,
             "--rules", "surrogate", "learned_attention", "greedy", "nearest"]  # fmt: skip
    method_seconds.main(method_seconds.parser().parse_args([str(word) for word in words]))
    seconds = read_seconds(tmp_path / "out.json")
    assert seconds.keys() == {"surrogate", "learned_attention", "greedy", "nearest"}
    assert all(value > 0 for value in seconds.values())


def test_the_benchmark_of_a_gpu_runs_on_a_cpu_and_a_case_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix_product_peak, "MIN_SECONDS", 0.0)
    monkeypatch.setitem(gpu.TOY, "compile_backend", "abacus")
    words = ["--device", "cpu", "--toy", "--threads", "1", "--out", str(tmp_path / "out.json")]
    gpu.main(gpu.parser().parse_args(words))
    AcceleratorState._reset_state(reset_partial_state=True)  # or other trainings would have its precision
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["peaks"].keys() == {"bfloat16", "float32"}  # and TF32 where there is one
    ways = [(row["what"], row["dtype"], row["long_context_length"]) for row in report["engine"]]
    assert [(what.split(", ")[1], *rest) for what, *rest in ways] == [
        ("ours", "float32", 24), ("all-targets loop", "float32", 24),
        ("ours", "bfloat16", 24), ("all-targets loop", "bfloat16", 24),
        ("ours", "bfloat16", 32), ("all-targets loop", "bfloat16", 32),
    ]  # fmt: skip
    for row in report["engine"]:
        peak = report["peaks"][row["dtype"]]
        assert row["fraction_of_peak"] == pytest.approx(row["flops_per_second"] / peak)
    plain, compiled = report["training"]
    assert plain["ratio"] == pytest.approx(plain["tokens_per_second"] / plain["plain_tokens_per_second"])
    assert compiled["is_compiled"] and "abacus" in compiled["failed"]
    shown = capsys.readouterr().out
    assert "60m, all-targets loop" in shown and "failed: " in shown


@pytest.mark.slow
def test_the_command_of_the_readme_runs(tmp_path: Path) -> None:
    command = [sys.executable, BENCHMARKS / "leave_one_out.py", *TINY, "--out", tmp_path / "out.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    variants_of_24 = json.loads((tmp_path / "out.json").read_text())["lengths"][0]["variants"]
    assert variants_of_24["ours, float32"]["peak_extra_bytes"] >= 0
    assert "gain over the loop" in done.stdout


def test_querying_gives_the_answer_of_pandas(tmp_path: Path) -> None:
    command = [sys.executable, BENCHMARKS / "query.py", "--rows", "8000", "--shards", "2", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--pandas-rows", "8000", "--folder", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr  # it ends where the two answers differ
    assert "8,000 rows, 20 files" in done.stdout
    assert not list(tmp_path.iterdir())


def test_explaining_a_text_is_counted_and_timed(tmp_path: Path) -> None:
    words = "--num-tokens", "40", "--layers", "1", "--width", "64", "--out", str(tmp_path / "out.json")
    explain_seconds.main(explain_seconds.parser().parse_args(words))
    report = json.loads((tmp_path / "out.json").read_text())
    # 20 targets with 16 tokens right before them, and a pass for each of the last one's 23 far tokens.
    of_short_contexts, of_removals = 20 * 16, sum(40 - 1 - first for first in range(23))
    assert report["token_forwards"] > of_short_contexts + of_removals
    assert report["vocabulary_projections"] > sum(range(4, 24))
    assert report["seconds"] > 0 and report["processor_seconds"] > 0


def test_loading_a_page_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    explorer_load = importlib.import_module("explorer_load")  # skips without playwright
    if explorer_load.CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    explorer_load.main(explorer_load.parser().parse_args(["--megabytes", "0.8", "--loads", "3"]))
    report = json.loads(capsys.readouterr().out)
    assert 0.5 < report["megabytes"] <= 0.8 and report["loads"] == 2
    assert report["load_seconds"] > 0 and report["processor_seconds"] > 0
