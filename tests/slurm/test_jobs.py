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
from measured_documents import json_lines

from pipeline import loss_differences

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
def test_without_cluster_env_a_job_says_what_to_do(
    slurm: LocalSlurm, make_checkout: Callable[..., Path]
) -> None:
    root = make_checkout()
    (root / "slurm" / "cluster.env").unlink()
    job_id = slurm.submit("slurm/pretrain.sh", cwd=root)
    (job,) = slurm.wait(job_id)
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "2:0")
    assert "cp slurm/cluster.env.example slurm/cluster.env" in (root / f"slurm-{job_id}.out").read_text()


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
        loss_differences.main(loss_differences.parser().parse_args(list(map(str, words))))

    with pytest.raises(SystemExit) as stopped:
        measure(root / "run/results", "--status")
    assert not stopped.value.code
    measure(tmp_path)
    files = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    assert len(files) == 2 * 6  # a shard a document, as there are so few
    for name, content in files.items():
        assert (root / "run/results" / name).read_bytes() == content


@pytest.mark.slow
def test_where_a_job_fails_those_that_need_it_are_cancelled(
    slurm: LocalSlurm, make_checkout: Callable[..., Path], tmp_path: Path
) -> None:
    # There when the study is submitted, so that it is a job that finds out.
    for index in range(2):
        (tmp_path / f"damaged-{index}.jsonl").write_text("no JSON\n")
    root = make_checkout(train_text=str(tmp_path / "damaged-*.jsonl"))
    job_ids = submit_all(slurm, root)
    tokenize, *others = [slurm.wait(job_id) for job_id in job_ids]
    assert states(tokenize) == {"FAILED"}
    assert {job["ExitCode"] for job in tokenize} == {"2:0"}
    assert len(others) == 6
    assert {state for jobs in others for state in states(jobs)} == {"CANCELLED"}
    assert "damaged-0.jsonl" in log(root, "tokenize_c4-tasks", f"{job_ids[0]}_0")


@pytest.fixture
def root(make_checkout: Callable[..., Path], text: Path) -> Path:
    """A checkout whose data is already there."""
    root = make_checkout()
    shutil.copytree(text / "data", root / "run" / "data")
    return root


@pytest.mark.slow
def test_without_arguments_a_job_is_that_of_the_study(slurm: LocalSlurm, root: Path) -> None:
    job_ids = [slurm.submit("slurm/pretrain.sh", cwd=root)]  # as typed
    job_ids.append(slurm.submit("--job-name=long-seed1", "slurm/pretrain.sh", cwd=root))
    job_ids.append(slurm.submit("--job-name=of-another-study", "slurm/pretrain.sh", cwd=root))
    assert [job["ExitCode"] for job in slurm.wait(*job_ids)] == ["0:0", "0:0", "2:0"]
    trained = {path.parent.name for path in (root / "run/models").glob("*/step6-unsharded")}
    assert trained == {"short-pose", "long-seed1"}  # the first model, and the one of the job's name
    assert "step6-unsharded" in log(root, "pretrain", job_ids[0])
    assert "of-another-study" in (root / f"slurm-{job_ids[2]}.out").read_text()


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


@pytest.mark.slow
def test_a_task_of_an_array_is_requeued_alone(
    slurm: LocalSlurm, make_checkout: Callable[..., Path], text: Path
) -> None:
    root = make_checkout()
    (root / "run" / "logs").mkdir(parents=True)
    for index in range(2):  # which take a while, and save something often
        (root / f"long-{index}.jsonl").write_text(json_lines(index, 8_000, 80))
    flags = ["--num-tasks", "2", "--out", "run/data", "--source", "long-0.jsonl", "long-1.jsonl"]
    flags += ["--evaluation-source", f"{text}/validation.jsonl", "--tokenizer", f"{text}/data/tokenizer.json"]
    job = ["--array=0-1", "--output=run/logs/%x-%A_%a.log", "slurm/tokenize_c4.sh"]
    array = slurm.submit(*job, *flags, "--tokens-per-part", "100000", cwd=root)
    # The last task of an array has the array's own ID, which would requeue all of it.
    parts = root / "run/data/tasks/00001-of-00002/train"
    await_until(lambda: any(parts.glob("part-*.npy")), "task 1 has saved something")
    slurm.signal_near_time_limit(f"{array}_1")
    jobs = slurm.wait(array)
    said = log(root, "tokenize_c4", f"{array}_1")
    assert states(jobs) == {"COMPLETED"}, said
    assert {job["ArrayTaskId"]: job["Restarts"] for job in jobs} == {"0": "0", "1": "1"}
    assert "going on behind" in said


@pytest.mark.slow
def test_a_job_that_saves_nothing_within_its_time_limit_fails(
    slurm: LocalSlurm, make_checkout: Callable[..., Path]
) -> None:
    root = make_checkout()
    idle = "run bash -c 'touch started; exec sleep 300' idle --out run/nothing"
    (root / "slurm/idle.sh").write_text(f"#!/usr/bin/env bash\nsource slurm/job.sh || exit 2\n{idle}\n")
    job_id = slurm.submit("--output=idle.log", "slurm/idle.sh", "an argument", cwd=root)
    await_until((root / "started").exists, "the job runs")
    slurm.signal_near_time_limit(job_id)
    (failed,) = slurm.wait(job_id)
    assert (failed["JobState"], failed["Restarts"]) == ("FAILED", "0")
    said = (root / "idle.log").read_text()
    assert "nothing was saved within the time limit" in said and "give it a longer --time" in said
