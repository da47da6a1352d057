"""The jobs of a study as they are planned."""

import re
import shlex
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from sparsity_length.cli import stage_of
from sparsity_length.measuring.rules import TRIAL_SWAPS
from sparsity_length.studies.cluster import (
    forward_tokens,
    minutes_of,
    num_checkpoints,
    num_weights,
    training_operations,
)
from sparsity_length.studies.commands import commands_of
from sparsity_length.studies.file import load_study
from sparsity_length.studies.run import submit_chain


def test_each_job_waits_for_those_it_needs_and_is_given_its_tasks(
    study_file: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def planned(*overrides: str) -> dict[str, list[str]]:
        """Job name -> what stands after sbatch, where a job's name stands for its ID."""
        study = load_study(study_file(), overrides)
        submit_chain(commands_of(study), study, is_plan=True)
        lines = [shlex.split(line)[1:] for line in capsys.readouterr().out.splitlines()]
        return {words[2].removeprefix("--job-name="): words for words in lines}

    jobs = planned("slurm={tokenize: 3, measure: 2}")
    waits = {name: re.findall("--dependency=afterok:(.*?) ", " ".join(jobs[name])) for name in jobs}
    models = "tiny-short-seed0:tiny-long-seed1"
    assert {name: "".join(wait) for name, wait in waits.items()} == {
        "tokenize_c4-tasks": "",
        "tokenize_c4": "tokenize_c4-tasks",
        "tiny-short-seed0": "tokenize_c4",
        "tiny-long-seed1": "tokenize_c4",
        "loss_differences-tiny": f"tokenize_c4:{models}",
        "length_losses-tiny": f"tokenize_c4:{models}",
        "influential_tokens-tiny": "tokenize_c4:tiny-long-seed1",
        "run_notebooks-tiny": "loss_differences-tiny:length_losses-tiny:influential_tokens-tiny",
        "loss_differences-tiny-along_training": "tokenize_c4:tiny-long-seed1",
        "summary-tiny": f"tokenize_c4:{models}:loss_differences-tiny:length_losses-tiny"
        ":influential_tokens-tiny:run_notebooks-tiny:loss_differences-tiny-along_training",
    }
    assert jobs["tokenize_c4-tasks"] == [
        "--parsable",
        "--kill-on-invalid-dep=yes",
        "--job-name=tokenize_c4-tasks",
        "--output=run/logs/tokenize_c4-tasks-%A_%a.log",
        "--array=0-2",
        "slurm/tokenize_c4.sh",
        "--num-tasks",
        "3",
        "--out",
        "run/data",
        "--source",
        "train.jsonl",
        "--evaluation-source",
        "evaluation.jsonl",
        "--tokenizer",
        "bpe:300",
    ]
    assert jobs["tokenize_c4"][-3:] == ["slurm/merge_c4.sh", "--out", "run/data"]
    assert "--output=run/logs/tiny-long-seed1-%j.log" in jobs["tiny-long-seed1"]
    assert jobs["length_losses-tiny"][4] == "--array=0-1"
    assert jobs["length_losses-tiny"][6:10] == ["slurm/loss_differences.sh", "--num-tasks", "2", "--data"]
    assert jobs["summary-tiny"][-6:-3] == ["slurm/analysis.sh", "analysis/summary.py", "--results"]
    in_one_piece = planned()  # which needs no merge
    assert "tokenize_c4-tasks" not in in_one_piece
    assert in_one_piece["tokenize_c4"][4:8] == ["--array=0-0", "slurm/tokenize_c4.sh", "--num-tasks", "1"]


def test_hours_and_disk_are_counted(study_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = study_file()
    monkeypatch.chdir(path.parent)
    study = load_study(path, ["sizes.tiny.overrides=[save_interval=3,scheduler.t_warmup=2]"])
    commands = {command.name: command for command in commands_of(study)}

    def asked_by(name: str, *needed: Any) -> Any:
        stage = stage_of(commands[name].stage)
        return stage.settings(stage.parse(commands[name].arguments), needed)

    config = asked_by("tiny-short-seed0")
    # tiny.yaml: 2 layers of width 128 with a SwiGLU of 512; 300 tokens take 384 rows, tied.
    weights = num_weights(config, "bpe:300")
    assert weights == 384 * 128 + 2 * (4 * 128**2 + 128 * 512 + 256 * 128)
    # Four steps; each token attends to 8 of 16 tokens on average, twice, in 2 layers of width 128.
    tokens = 4 * config.global_train_batch_tokens
    assert training_operations(config, weights) == 6 * tokens * (weights + 2 * 8 * 2 * 128)
    assert num_checkpoints(config) == 2  # steps 3 and 4

    def tokens_of(name: str) -> float:
        return forward_tokens(asked_by(name), 5)

    # Five documents of 64 tokens, 4 targets with 8 near tokens and at most 55 distant ones.
    assert tokens_of("loss_differences-tiny") == 5 * (64 + 4 * 8)
    search = 64 + 55 * (64 - 55 / 2)
    trial = 2 * 4 * ((8 + 1) + (8 + 4))
    assert tokens_of("influential_tokens-tiny") == 5 * 2 * (search + trial * TRIAL_SWAPS)


@pytest.mark.parametrize(
    ("time", "minutes"),
    [("30", 30), ("30:30", 30.5), ("12:00:00", 720), ("1-12", 2160), ("1-12:30", 2190), ("infinite", inf)],
)
def test_times_as_slurm_writes_them(time: str, minutes: float) -> None:
    assert minutes_of(time) == minutes
