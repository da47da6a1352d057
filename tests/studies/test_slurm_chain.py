"""The jobs of a study as they are planned."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

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
