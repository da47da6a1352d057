"""A study on real stages: refused text, then the whole of it, then nothing left to do."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from measured_documents import json_lines

from sparsity_length.results.read import Results

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "sizes.tiny.overrides=[save_interval=2,model.d_model=16,model.n_heads=2,model.n_layers=1,"
    "model.max_sequence_length=64,scheduler.t_warmup=2,global_train_batch_tokens=256,"
    "device_train_microbatch_tokens=256,precision=fp32,eval_context_lengths=null]",
    "evaluation.stages=[loss_differences,influential_tokens,summary]",
]


def run(study: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, str(ROOT / "pipeline" / "study.py"), study.name, *SMALL, *overrides]
    return subprocess.run(words, cwd=study.parent, capture_output=True, text=True, timeout=900)


def parquet_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


@pytest.mark.slow
def test_a_study_goes_on_where_a_stage_failed_and_sees_what_changed(study_file: Callable[..., Path]) -> None:
    config = study_file().parent / "tiny.yaml"
    config.write_text((ROOT / "olmo_configs" / "tiny.yaml").read_text())
    study = study_file((str(ROOT / "olmo_configs" / "tiny.yaml"), str(config)))
    folder = study.parent
    (folder / "train.jsonl").write_text(json_lines(0, 40, 80))
    (folder / "evaluation.jsonl").write_text(json.dumps({"text": "too short"}) + "\n")
    failed = run(study)
    assert failed.returncode == 2, failed.stderr
    assert " ended with exit code 2; run the same again to go on" in failed.stderr
    assert not (folder / "run" / "results" / "tiny" / "loss_differences").exists()

    (folder / "evaluation.jsonl").write_text(json_lines(1, 40, 80))
    refused = run(study)
    assert refused.returncode == 2
    assert "run/data holds data made with other settings: inputs.evaluation source" in refused.stderr
    shutil.rmtree(folder / "run")  # other text is another study
    # Two shards, which two processes measure, and one.
    measure = ["evaluation.max_documents=40"]
    whole = run(study, *measure, "--jobs", "2")
    assert whole.returncode == 0, whole.stderr
    assert "The distant context lowers the loss" in whole.stdout
    assert set(Results(folder / "run" / "results" / "tiny").frame("loss_differences")["model"]) == {
        "tiny-short-seed0",
        "tiny-long-seed1",
    }
    along = Results(folder / "run" / "along_training" / "results" / "tiny").frame("loss_differences")
    assert set(along["model"]) == {"tiny-long-seed1-step2"}
    assert (folder / "run" / "logs" / "loss_differences-tiny-2-of-2.log").is_file()

    # What was removed is measured again, by one process: to the same bytes. A comment changes nothing.
    measured = parquet_files(folder / "run")
    shutil.rmtree(folder / "run" / "along_training")
    shutil.rmtree(folder / "run" / "results")
    config.write_text(config.read_text() + "# a comment\n")
    again = run(study, *measure, "--jobs", "1")
    assert again.returncode == 0, again.stderr
    assert len(re.findall("(?m)^sparsity ", again.stdout)) == 4  # no text, no models
    assert (folder / "run" / "logs" / "loss_differences-tiny.log").is_file()
    assert parquet_files(folder / "run") == measured != {}
    for name in ("train.jsonl", "evaluation.jsonl"):  # text may be put away once it is tokenized
        (folder / name).unlink()
    nothing_left = run(study, *measure, "--jobs", "1")
    assert nothing_left.returncode == 0, nothing_left.stderr
    assert nothing_left.stdout.startswith("sparsity summary ") and again.stdout.endswith(nothing_left.stdout)
    assert parquet_files(folder / "run") == measured

    assert "learning_rate: 6.0e-3" in config.read_text()
    config.write_text(config.read_text().replace("learning_rate: 6.0e-3", "learning_rate: 6.1e-3"))
    refused = run(study, *measure)
    assert refused.returncode == 2
    assert "run/models/tiny-short-seed0 holds a run made with other settings" in refused.stderr
    assert "optimizer.learning_rate was 0.006, now 0.0061" in refused.stderr
