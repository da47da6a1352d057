"""The jobs of a study: with as they are planned, and with a recorder in place of sbatch."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.studies.commands import commands_of
from pipeline.studies.file import load_study
from pipeline.studies.slurm import arguments_of, submit_chain
from pipeline.study import main, parser

ROOT = Path(__file__).resolve().parents[2]
# Writes down how it was called, and answers as `sbatch --parsable` does on a federation.
SBATCH = """#!/bin/bash
echo "$ACCOUNT $*" >> calls
[[ $* == *influential* ]] && { echo "sbatch: error: no such partition" >&2; exit 1; }
echo "$(wc -l < calls);cluster"
"""


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
        "summary-tiny": "run_notebooks-tiny",
        "loss_differences-tiny-along_training": "tokenize_c4:tiny-long-seed1",
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


def test_every_script_of_a_job_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("C4", "MODEL", "SCRATCH", "TEXT"):
        monkeypatch.setenv(variable, "/text")
    for path in (ROOT / "olmo_configs" / "studies").glob("*.yaml"):
        stages = {command.stage for command in commands_of(load_study(path)) if command.is_stage}
        assert all((ROOT / "slurm" / f"{stage}.sh").is_file() for stage in stages), path


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a cluster.env that finds the recording sbatch."""
    monkeypatch.chdir(tmp_path)
    Path("slurm").mkdir()
    Path("slurm/cluster.env").write_text(f"export PATH={tmp_path}:$PATH ACCOUNT=ours\n")
    Path("sbatch").write_text(SBATCH)
    Path("sbatch").chmod(0o755)
    return tmp_path


def test_jobs_are_submitted_with_the_clusters_variables(
    study_file: Callable[..., Path], checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(parser().parse_args([str(study_file()), "evaluation.stages=[loss_differences]", "--slurm"]))
    printed = capsys.readouterr().out.splitlines()
    calls = Path("calls").read_text().splitlines()
    assert len(calls) == 5
    assert printed == [
        f"job {number}: sbatch {shlex.join(call.removeprefix('ours ').split())}"
        for number, call in enumerate(calls, 1)
    ]
    assert "--dependency=afterok:1:2:3 slurm/loss_differences.sh" in calls[3]
    assert Path("run/logs").is_dir()
    with pytest.raises(
        InputError, match="refused the job influential_tokens-tiny: .* no such partition; jobs"
    ):
        main(parser().parse_args([str(study_file()), "--slurm"]))
    Path("slurm/cluster.env").unlink()
    with pytest.raises(InputError, match="cluster.env is missing here: .* cp slurm/cluster.env.example"):
        main(parser().parse_args([str(study_file()), "--slurm"]))


def test_the_arguments_of_one_job_by_its_name_or_its_script(study_file: Callable[..., Path]) -> None:
    study = load_study(study_file())
    commands = commands_of(study)
    assert arguments_of(commands, "tiny-long-seed1") == list(commands[2].arguments)
    assert arguments_of(commands, "pretrain") == list(commands[1].arguments)  # the first of its kind
    assert arguments_of(commands, "loss_differences")[:2] == ["--num-tasks", str(study.slurm.measure)]
    with pytest.raises(InputError, match="tiny-long-seed9"):
        arguments_of(commands, "tiny-long-seed9")
