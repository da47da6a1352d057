"""The sbatch scripts as text: clean, one a stage, and alike in what they ask Slurm for."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

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
