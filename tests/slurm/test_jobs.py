"""The sbatch scripts on a real Slurm: what runs, what waits for what, what happens at a time limit."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import forked_stages
import pytest
import torch
from local_slurm import LocalSlurm
from sparsity_length.programs import loss_differences

NUM_STEPS = 400


def submit_all(slurm: LocalSlurm, root: Path) -> list[str]:
    """The IDs of all jobs, in order, as `study.py --slurm` prints them."""
    submitted = slurm.run("slurm/submit_all.sh", cwd=root)
    assert submitted.returncode == 0, submitted.stderr
    return [line.split()[1].rstrip(":") for line in submitted.stdout.splitlines()]


def log(root: Path, name: str, job_id: str) -> str:
    path = root / "run" / "logs" / f"{name}-{job_id}.log"
    return path.read_text() if path.exists() else ""


def await_until(happened: Callable[[], bool], what: str, timeout: float = 240) -> None:
    deadline = time.monotonic() + timeout
    while not happened():
        assert time.monotonic() < deadline, f"{what}: not within {timeout} s"
        time.sleep(0.1)


def states(jobs: list[dict[str, str]]) -> set[str]:
    return {job["JobState"] for job in jobs}


@pytest.mark.slow
def test_a_study_runs_from_text_to_results(
    slurm: LocalSlurm, make_checkout: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_checkout()
    job_ids = submit_all(slurm, root)
    assert len(job_ids) == 7
    jobs = slurm.wait(*job_ids, timeout=500)
    logs = {path.name: path.read_text()[-2000:] for path in (root / "run" / "logs").iterdir()}
    assert states(jobs) == {"COMPLETED"}, logs
    assert len(jobs) == 2 + 1 + 2 + 3 * 2
    assert {path.name for path in (root / "run" / "models").iterdir()} == {"short-pose", "long-seed1"}
    # What the tasks of the array wrote is what one process writes, to the byte.
    flags = ["--data", root / "run/data", "--checkpoints", *sorted((root / "run/models").iterdir())]
    flags += ["--short-context-length", 8, "--long-context-length", 64, "--targets-per-chunk", 4]

    def measure(results: Path, *further: str) -> None:
        words = [*flags, "--max-documents", 6, "--results", results, *further]
        loss_differences.STAGE(list(map(str, words)))

    with pytest.raises(SystemExit) as stopped:
        measure(root / "run/results", "--status")
    assert not stopped.value.code
    measure(tmp_path)
    files = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    assert len(files) == 2 * 6  # a shard a document, as there are so few
    for name, content in files.items():
        assert (root / "run/results" / name).read_bytes() == content


SITE = """
module() { echo "loading $2"; test -n "$LMOD_OF_THE_SITE"; }
module load cuda
export SCRATCH=${SCRATCH:-/scratch/$(id -un)} HF_HOME=${HF_HOME:-/scratch/$USER}
CONTAINER="env IN_CONTAINER=1"
"""
"""What a cluster.env does that no `set -u` survives: unset variables, and commands that print and fail."""


@pytest.mark.slow
def test_a_site_s_modules_and_scratch_and_what_stands_against_a_study(
    slurm: LocalSlurm, make_checkout: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(slurm._environment, "USER", raising=False)
    monkeypatch.setitem(slurm._environment, "SCRATCH", str(tmp_path))
    root = make_checkout()
    cluster_env = root / "slurm" / "cluster.env"
    cluster_env.write_text(SITE + cluster_env.read_text())
    planned = slurm.run("slurm/submit_all.sh", "--dry-run", "run=${oc.env:SCRATCH}/run", cwd=root)
    assert planned.returncode == 0, planned.stderr
    assert f"--out {tmp_path}/run/data" in planned.stdout

    cuda = torch.backends.cuda.is_built()
    checked = slurm.run("slurm/submit_all.sh", "--check", cwd=root)
    assert checked.returncode == (0 if cuda else 1), checked.stderr
    assert "slurm/pretrain.sh" not in checked.stdout
    # A partition with less time than the scripts ask for, an hour, and none of a name.
    with cluster_env.open("a") as file:
        file.write("export SBATCH_PARTITION=short\n")
    assert "slurm/pretrain.sh" in slurm.run("slurm/submit_all.sh", "--check", cwd=root).stdout
    with cluster_env.open("a") as file:
        file.write("export SBATCH_TIMELIMIT=30\n")
    assert "slurm/pretrain.sh" not in slurm.run("slurm/submit_all.sh", "--check", cwd=root).stdout
    with cluster_env.open("a") as file:
        file.write("export SBATCH_PARTITION=nowhere\n")
    assert "slurm/pretrain.sh" in slurm.run("slurm/submit_all.sh", "--check", cwd=root).stdout
    shutil.move(root / "study.yaml", root / "moved.yaml")
    assert slurm.run("slurm/submit_all.sh", "--check", cwd=root).returncode == 2


@pytest.mark.slow
def test_a_first_job_alone_says_what_is_missing(
    slurm: LocalSlurm, make_checkout: Callable[..., Path]
) -> None:
    root = make_checkout()
    with (root / "slurm" / "cluster.env").open("a") as file:
        file.write('CONTAINER="env IN_CONTAINER=1"\nexport CUDA_VISIBLE_DEVICES=\n')
    scripts = ("pretrain", "test_gpu")
    output = "--output=%x.log"
    job_ids = [slurm.submit(output, f"slurm/{script}.sh", cwd=root) for script in scripts]
    ended = slurm.wait(*job_ids)
    said = {script: (root / f"{script}.log").read_text() for script in scripts}
    assert states(ended) == {"FAILED"}, said
    assert "no tokenized data in run/data" in said["pretrain"]
    assert not (root / "run").exists()  # it ends before there is a log of its own
    assert "sees no GPU" in said["test_gpu"]


@pytest.fixture
def root(make_checkout: Callable[..., Path], text: Path) -> Path:
    """A checkout whose data is already there."""
    root = make_checkout()
    shutil.copytree(text / "data", root / "run" / "data")
    return root


@pytest.mark.slow
def test_two_nodes_train_one_model_and_go_on_after_a_requeue(
    slurm: LocalSlurm, make_checkout: Callable[..., Path], text: Path
) -> None:
    root = make_checkout()
    shutil.copytree(text / "data", root / "run" / "data")
    steps = [f"max_duration={NUM_STEPS}", f"save_interval={NUM_STEPS}", f"eval_interval={NUM_STEPS}"]
    (root / "run" / "logs").mkdir()

    words = [str(text / "small.yaml"), "--data", str(root / "run/data"), *steps, "--save-folder"]
    job = ["--nodes=2", "--job-name=stopped", "--output=run/logs/%x-%j.log", "slurm/pretrain.sh"]
    stopped = root / "run" / "models" / "stopped"
    job_id = slurm.submit(*job, *words, str(stopped), cwd=root)
    whole = root / "whole"  # not by Slurm
    with forked_stages.ranks("pipeline/pretrain.py", *words, whole, cwd=root):
        metrics = stopped / "metrics.jsonl"
        await_until(lambda: metrics.exists() and metrics.stat().st_size > 0, "the first steps")
        slurm.signal_near_time_limit(job_id)
    (ended,) = slurm.wait(job_id)
    said = log(root, "stopped", job_id)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), said
    assert "the time limit is near" in said and "restart 1" in said
    saved = int(said.split("going on from ")[1].split("step")[1].split("-")[0])
    assert 0 < saved < NUM_STEPS

    last = f"step{NUM_STEPS}-unsharded"
    weights = [torch.load(folder / last / "model.pt", weights_only=True) for folder in (whole, stopped)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert torch.load(stopped / last / "train.pt", weights_only=True)["num_ranks"] == 2
    steps_logged = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps_logged == list(range(1, NUM_STEPS + 1))
