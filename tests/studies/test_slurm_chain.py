"""The jobs of a study: with a recorder in place of sbatch, and with one that refuses."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.studies.commands import commands_of
from pipeline.studies.file import load_study
from pipeline.studies.slurm import arguments_of, sbatch, submit_chain
from pipeline.study import main, parser

# Writes down how it was called, and answers as `sbatch --parsable` does on a federation.
SBATCH = """#!/bin/bash
echo "$ACCOUNT $*" >> calls
[[ $* == *influential* ]] && { echo "sbatch: error: no such partition" >&2; exit 1; }
echo "$(wc -l < calls);cluster"
"""


def submitted(path: Path, *overrides: str) -> dict[str, list[str]]:
    """Job name -> what stood after sbatch; IDs are j1, j2, …"""
    jobs: dict[str, list[str]] = {}

    def submit(name: str, words: Sequence[str]) -> str:
        assert name not in jobs
        jobs[name] = list(words)
        return f"j{len(jobs)}"

    study = load_study(path, overrides)
    submit_chain(commands_of(study), study, submit)
    return jobs


def test_each_job_waits_for_those_it_needs(study_file: Callable[..., Path]) -> None:
    jobs = submitted(study_file(), "slurm={tokenize: 3, measure: 2}")
    waits = {
        name: next((word for word in words if word.startswith("--dependency=")), "")
        for name, words in jobs.items()
    }
    assert {name: wait.removeprefix("--dependency=afterok:") for name, wait in waits.items()} == {
        "tokenize_c4-tasks": "",
        "tokenize_c4": "j1",
        "tiny-short-seed0": "j2",
        "tiny-long-seed1": "j2",
        "loss_differences-tiny": "j2:j3:j4",
        "length_losses-tiny": "j2:j3:j4",
        "influential_tokens-tiny": "j2:j4",
        "run_notebooks-tiny": "j5:j6:j7",
        "summary-tiny": "j8",
        "loss_differences-tiny-along_training": "j2:j4",
    }
    assert all("--kill-on-invalid-dep=yes" in words for words in jobs.values())


def test_what_jobs_are_given(study_file: Callable[..., Path]) -> None:
    jobs = submitted(study_file(), "slurm={tokenize: 3, measure: 2}")
    assert jobs["tokenize_c4-tasks"] == [
        "--parsable", "--kill-on-invalid-dep=yes", "--job-name=tokenize_c4-tasks",
        "--output=run/logs/tokenize_c4-tasks-%A_%a.log", "--array=0-2", "slurm/tokenize_c4.sh",
        "--num-tasks", "3", "--out", "run/data", "--source", "train.jsonl",
        "--evaluation-source", "evaluation.jsonl", "--tokenizer", "bpe:300",
    ]  # fmt: skip
    assert jobs["tokenize_c4"][-3:] == ["slurm/merge_c4.sh", "--out", "run/data"]
    assert "--output=run/logs/tiny-long-seed1-%j.log" in jobs["tiny-long-seed1"]
    assert jobs["length_losses-tiny"][4] == "--array=0-1"
    assert jobs["length_losses-tiny"][6:10] == ["slurm/length_losses.sh", "--num-tasks", "2", "--data"]
    assert jobs["summary-tiny"][-6:-3] == ["slurm/analysis.sh", "analysis/summary.py", "--results"]


def test_text_in_one_piece_needs_no_merge(study_file: Callable[..., Path]) -> None:
    jobs = submitted(study_file())
    assert "tokenize_c4-tasks" not in jobs
    assert jobs["tokenize_c4"][4:8] == ["--array=0-0", "slurm/tokenize_c4.sh", "--num-tasks", "1"]


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
    overrides = ["evaluation.stages=[loss_differences]"]
    main(parser().parse_args([str(study_file()), *overrides, "--slurm"]))
    printed = capsys.readouterr().out.splitlines()
    calls = Path("calls").read_text().splitlines()
    assert len(calls) == 5
    assert printed == [
        f"job {number}: sbatch {shlex.join(call.removeprefix('ours ').split())}"
        for number, call in enumerate(calls, 1)
    ]
    assert "--dependency=afterok:1:2:3 slurm/loss_differences.sh" in calls[3]
    assert Path("run/logs").is_dir()


def test_a_job_that_is_refused_is_named(study_file: Callable[..., Path], checkout: Path) -> None:
    with pytest.raises(
        InputError, match="refused the job influential_tokens-tiny: .* no such partition; jobs"
    ):
        main(parser().parse_args([str(study_file()), "--slurm"]))


def test_without_cluster_env_nothing_is_submitted(
    study_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=r"slurm/cluster.env is missing here: .* cp slurm/cluster.env.example"
    ):
        sbatch(load_study(study_file()))


def test_a_dry_run_prints_jobs_that_wait_by_name(
    study_file: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    main(parser().parse_args([str(study_file()), "--slurm", "--dry-run"]))
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("sbatch --parsable ") for line in lines)
    assert " --dependency=afterok:tokenize_c4:tiny-long-seed1 " in lines[-1]
    assert not Path("run").exists()


def test_the_arguments_of_one_job_by_its_name_or_its_script(study_file: Callable[..., Path]) -> None:
    study = load_study(study_file())
    commands = commands_of(study)
    by_name = arguments_of(commands, "tiny-long-seed1")
    assert by_name == list(commands[2].arguments)
    assert arguments_of(commands, "pretrain") == list(commands[1].arguments)  # the first of its kind
    shards = ["--num-tasks", str(study.slurm.measure)]
    assert arguments_of(commands, "loss_differences")[:2] == shards
    with pytest.raises(InputError, match="tiny-long-seed9"):
        arguments_of(commands, "tiny-long-seed9")
