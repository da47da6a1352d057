"""The sbatch scripts as text: clean, one a stage, and alike in what they ask Slurm for."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "slurm").glob("*.sh"))
WHOLE = ("pretrain", "train_synthetic", "evaluate_synthetic")
"""Stages that one job does."""
DIVIDED = ("tokenize_c4", "loss_differences", "influential_tokens", "evaluate_tokens")
"""Stages that the tasks of an array do."""


def directives(script: Path) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", script.read_text(), re.MULTILINE))


def test_shellcheck_has_nothing_to_say() -> None:
    # The extra `test` puts it beside the interpreter, in a folder that need not be on the PATH.
    beside = Path(sys.executable).parent
    shellcheck = shutil.which("shellcheck", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    assert shellcheck is not None, "shellcheck is missing; the extra `test` brings it"
    checked = subprocess.run(
        [shellcheck, "--external-sources", *(script.relative_to(ROOT) for script in SCRIPTS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert checked.stdout == ""
    assert checked.returncode == 0


@pytest.mark.parametrize(("requeues", "code"), [(True, 138), (False, 75)])
def test_a_job_says_whether_it_is_back_in_the_queue(requeues: bool, code: int, tmp_path: Path) -> None:
    """At its time limit, on a node that has scontrol or has none."""
    programs = {"srun": 'echo 1 >"$SAVED"; kill -USR1 $PPID', "scancel": "", "sleep": ""}
    for name, command in (programs | ({"scontrol": ""} if requeues else {})).items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{command}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "cut", "date", "find", "hostname", "sort"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "cluster.env").touch()
    command = f"source {ROOT}/slurm/job.sh; run true --out {tmp_path}/out; exit 0"
    (tmp_path / "out").mkdir()
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n", "SLURM_NNODES": "1", "SLURM_JOB_NAME": "j"}
    done = subprocess.run(
        ["bash", "-c", command, "bash", "words"],
        cwd=tmp_path,
        env=variables | {"PATH": str(tmp_path), "SAVED": str(tmp_path / "out" / "saved")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr  # 138: by USR1, where Slurm would end it
    assert ("back into the queue\n" in done.stdout) == requeues
    assert ("could not put it back" in done.stdout) == (not requeues)


def test_a_script_a_stage_that_stops_in_time_and_is_requeued() -> None:
    for stage in (*WHOLE, *DIVIDED):
        script = ROOT / "slurm" / f"{stage}.sh"
        asked = directives(script)
        assert asked["job-name"] == stage
        assert asked["signal"] == "B:USR1@120", stage
        assert asked.keys() >= {"requeue", "time", "mem", "nodes", "cpus-per-task"}, stage
        assert asked["open-mode"] == "append", stage  # a requeued job goes on in its log
        assert ("array" in asked) == (stage in DIVIDED), stage
        assert f"pipeline/{stage}.py" in script.read_text()
