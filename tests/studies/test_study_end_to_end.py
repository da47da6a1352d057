"""A study on real stages: refused text, then the whole of it, then nothing left to do."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.results.folder import read_artefact

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "sizes.tiny.overrides=[save_interval=2,model.d_model=16,model.n_heads=2,model.n_layers=1,"
    "model.max_sequence_length=64,scheduler.t_warmup=2,global_train_batch_tokens=256,"
    "device_train_microbatch_tokens=256,precision=fp32,eval_context_lengths=null]",
    "evaluation.stages=[loss_differences,influential_tokens,summary]",
]


def write_text(path: Path, num_documents: int, seed: int) -> None:
    generator = random.Random(seed)
    words = ["".join(generator.choices("abcdeghilmnorstu", k=generator.randint(2, 7))) for _ in range(80)]
    texts = (" ".join(generator.choices(words, k=80)) for _ in range(num_documents))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def run(study: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, str(ROOT / "pipeline" / "study.py"), study.name, *SMALL, *overrides]
    return subprocess.run(words, cwd=study.parent, capture_output=True, text=True, timeout=400)


@pytest.mark.slow
def test_a_study_goes_on_where_a_stage_failed(study_file: Callable[..., Path]) -> None:
    study = study_file()
    folder = study.parent
    write_text(folder / "train.jsonl", 40, seed=0)
    (folder / "evaluation.jsonl").write_text(json.dumps({"text": "too short"}) + "\n")
    failed = run(study)
    assert failed.returncode == 2, failed.stderr
    assert "loss_differences-tiny ended with exit code 2; run the same again to go on" in failed.stderr
    assert not (folder / "run" / "results" / "tiny" / "loss_differences").exists()

    write_text(folder / "evaluation.jsonl", 8, seed=1)
    shutil.rmtree(folder / "run")  # other text is another study, and its stages say so
    whole = run(study)
    assert whole.returncode == 0, whole.stderr
    assert "What the long context is worth" in whole.stdout
    assert set(read_artefact(folder / "run" / "results" / "tiny", "loss_differences")["model"]) == {
        "tiny-short-seed0", "tiny-long-seed1",
    }  # fmt: skip
    along = read_artefact(folder / "run" / "along_training" / "results" / "tiny", "loss_differences")
    assert set(along["model"]) == {"tiny-long-seed1-step2"}

    shutil.rmtree(folder / "run" / "along_training")
    again = run(study)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("finished before: ") == 5
    assert again.stdout.count("\npython ") == 2  # the summary, and what was removed
