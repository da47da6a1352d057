"""The sbatch scripts as text, and on a real Slurm on this machine: one controller, two nodes.

Nothing is written outside its own folder. No cgroups, no accounting database, no munge: so it listens on
loopback only, which needs the short host name to be a loopback address, as it is in containers and in CI.
"""

import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import forked_stages
import pandas as pd
import pytest
import torch
from forked_stages import ROOT, stand_ins, until
from measured_documents import contents, json_lines, run
from sparsity_length.programs import loss_differences, tokenize_c4

NODES = ("node0", "node1")
Job = dict[str, str]
"""One job, or one task of an array, as `scontrol show job -o` tells it: JobState, ExitCode, Restarts, …"""
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"}
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
MpiDefault=none
MinJobAge=86400
KillWait=5
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
GresTypes=gpu
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 RealMemory=256000 Gres=gpu:4
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 RealMemory=256000 Gres=gpu:4
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=ALL MaxTime=60 State=UP
"""


class LocalSlurm:
    """The Slurm whose files are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        foreign = ("SLURM", "SBATCH", "SRUN", "PYTHONPATH")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(foreign)},
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def run(self, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        """Run a command, as a user of this Slurm would type it."""
        return subprocess.run(
            words, cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=300
        )

    def said(self, *words: str, cwd: Path | None = None) -> str:
        """The output of a command that must not fail."""
        done = self.run(*words, cwd=cwd or self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def jobs(self, *job_ids: str) -> list[Job]:
        """All of them, of an array every task."""
        return [
            dict(re.findall(r"(\S+?)=(\S*)", line))
            for job_id in job_ids
            for line in self.said("scontrol", "show", "job", "-o", job_id).splitlines()
        ]

    def wait(self, *job_ids: str, timeout: float = 500) -> list[Job]:
        """All of them once they have ended; a job that waits for a requeue has not."""
        until(
            lambda: _ENDED.issuperset(job["JobState"] for job in self.jobs(*job_ids)),
            timeout,
            lambda: self.jobs(*job_ids),
        )
        return self.jobs(*job_ids)


def configure(folder: Path, host: str) -> None:
    """Write the files of a Slurm."""
    for name in ("state", "gpus", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    for index in range(4):  # GPUs of a node: a device of its own kind for the scheduler
        (folder / "gpus" / f"gpu{index}").symlink_to("/dev/null")
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpus/gpu[0-3]\n")
    with ExitStack() as listening:  # all three at once, so that no two are the same
        listeners = [listening.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [listener.getsockname()[1] for listener in listeners]
    (folder / "slurm.conf").write_text(
        _CONFIGURATION.format(host=host, user=getpass.getuser(), folder=folder, ports=ports)
    )


@pytest.fixture(scope="session")
def slurm() -> Iterator[LocalSlurm]:
    """A Slurm of this machine alone, stopped with all its jobs after the tests."""
    if missing := [
        program
        for program in ("slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "srun", "sinfo", "squeue")
        if shutil.which(program) is None
    ]:
        pytest.skip(f"no Slurm here ({', '.join(missing)} not found); .ci/run installs it where it can")
    host = socket.gethostname().partition(".")[0]
    if not subprocess.run(["getent", "ahostsv4", host], capture_output=True).stdout.startswith(b"127."):
        pytest.skip(f"host name {host} is not loopback: a Slurm without munge must not listen there")
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as name,  # short, for the sake of sockets
        ExitStack() as end,  # in the end, from the last to the first, whatever of it fails
    ):
        folder = Path(name)
        folder.chmod(0o755)
        configure(folder, host)
        slurm = LocalSlurm(folder)
        log = end.enter_context((folder / "daemons.log").open("w"))
        for words in (["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in NODES)):
            daemon = subprocess.Popen(words, env=slurm.environment, stdout=log, stderr=log)
            end.callback(daemon.kill)
            end.callback(daemon.wait, timeout=30)
            end.callback(daemon.terminate)
        end.callback(
            until, lambda: not slurm.run("squeue", "-h", cwd=folder).stdout, 30, lambda: "jobs do not end"
        )
        # What a failed test left: no process outlives the Slurm that started it.
        end.callback(slurm.run, "scancel", "--user", getpass.getuser(), cwd=folder)
        until(
            lambda: set(slurm.run("sinfo", "-hNo", "%T", cwd=folder).stdout.split()) == {"idle"},
            60,
            (folder / "daemons.log").read_text,
        )
        yield slurm


# The proxies lead nowhere: whatever asks for a network is refused, as on a compute node.
CLUSTER_ENV = f"""
export PATH={{programs}}:{Path(sys.executable).parent}:$PATH OMP_NUM_THREADS={os.environ["OMP_NUM_THREADS"]}
STUDY=study.yaml
export http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 all_proxy=http://127.0.0.1:9
"""
"""With as many threads as this process has: the last bits of a sum depend on who adds up what."""
SMALL = [
    "model.d_model=16",
    "model.n_heads=2",
    "model.n_layers=1",
    "model.residual_dropout=0.1",
    "model.max_sequence_length=64",
    "scheduler.t_warmup=2",
    "global_train_batch_tokens=256",
    "device_train_microbatch_tokens=128",
    "precision=fp32",
    "eval_num_documents=4",
]
STUDY = f"""
run: run
data:
  source: [text/train-*.jsonl]
  evaluation_source: [text/validation.jsonl]
  tokenizer: text/data/tokenizer.json
sizes_in_names: false
sizes:
  small:
    config: olmo_configs/tiny.yaml
    overrides: [{", ".join(SMALL)}, max_duration=6, eval_interval=6, "eval_context_lengths=[16,64]"]
models:
  short-pose: {{train_context_length: 16, position_scheme: pose, pose_target_length: 64}}
  long-seed1: {{train_context_length: 64, seed: 1}}
evaluation:
  stages: [loss_differences, length_losses, influential_tokens]
  influential_tokens: {{models: [long-seed1]}}
  short_context_length: 8
  long_context_length: 64
  targets_per_chunk: 4
  max_documents: 6
slurm: {{tokenize: 2, measure: 2}}
"""


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of training text, one of validation text, all of it tokenized in `data`."""
    folder = tmp_path_factory.mktemp("text", numbered=False)
    for seed, (name, number) in enumerate({"train-0": 20, "train-1": 20, "validation": 6}.items()):
        (folder / f"{name}.jsonl").write_text(json_lines(seed, number, 80))
    sources = ["--source", folder / "train-*.jsonl", "--evaluation-source", folder / "validation.jsonl"]
    run(tokenize_c4, *sources, "--tokenizer", "bpe:300", "--out", folder / "data")
    return folder


@pytest.fixture
def root(text: Path, tmp_path: Path) -> Path:
    """The repository's root as far as jobs need it, with a study.yaml, and the text."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "slurm", root / "slurm", ignore=shutil.ignore_patterns("cluster.env"))
    for folder in (ROOT / "pipeline", ROOT / "olmo_configs", text):
        (root / folder.name).symlink_to(folder)
    # What stands in for the `python` and `torchrun` of jobs saves the imports.
    (root / "slurm" / "cluster.env").write_text(CLUSTER_ENV.format(programs=stand_ins(tmp_path)))
    (root / "study.yaml").write_text(STUDY)
    return root


@pytest.mark.slow
def test_a_study_runs_from_text_to_results(slurm: LocalSlurm, root: Path, tmp_path: Path) -> None:
    """What the tasks of the array wrote is what one process writes, to the byte."""
    submitted = slurm.said("slurm/submit_all.sh", cwd=root).splitlines()
    assert len(submitted) == 7
    jobs = slurm.wait(*(line.split()[1].rstrip(":") for line in submitted))
    logs = {path.name: path.read_text()[-2000:] for path in (root / "run" / "logs").iterdir()}
    assert [job["JobState"] for job in jobs] == ["COMPLETED"] * (2 + 1 + 2 + 3 * 2), logs

    words = (
        "--data {0}/data --checkpoints {0}/models/long-seed1 {0}/models/short-pose --max-documents 6"
        " --short-context-length 8 --long-context-length 64 --targets-per-chunk 4"
    )
    run(loss_differences, *words.format(root / "run").split(), "--results", tmp_path)
    by_one = contents(tmp_path / "loss_differences")
    assert len(by_one) == 2 * 6  # one shard per document, as there are so few
    assert contents(root / "run/results/loss_differences") == by_one


@pytest.mark.slow
def test_a_study_runs_within_one_job(slurm: LocalSlurm, root: Path) -> None:
    words = ["--output=%x.log", "slurm/study.sh", "study.yaml", "models.short-pose=null"]
    (ended,) = slurm.wait(slurm.said("sbatch", "--parsable", *words, cwd=root))
    assert ended["JobState"] == "COMPLETED", (root / "study.log").read_text()[-2000:]
    assert [path.name for path in (root / "run" / "models").iterdir()] == ["long-seed1"]
    assert (root / "run" / "results" / "loss_differences" / "long-seed1").is_dir()


SITE = """
module() { echo "loading $2"; test -n "$LMOD_OF_THE_SITE"; }
module load cuda
export SCRATCH=${SCRATCH:-/scratch/$(id -un)} HF_HOME=${HF_HOME:-/scratch/$USER}
CONTAINER="env IN_CONTAINER=1"
"""
"""What a cluster.env does that no `set -u` survives: unset variables, and commands that print and fail."""


@pytest.mark.slow
def test_a_site_s_modules_and_scratch_and_what_stands_against_a_study(
    slurm: LocalSlurm, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(slurm.environment, "USER", raising=False)
    monkeypatch.setitem(slurm.environment, "SCRATCH", str(tmp_path))
    cluster_env = root / "slurm" / "cluster.env"
    cluster_env.write_text(SITE + CLUSTER_ENV)
    assert f"--out {tmp_path}/run/data" in slurm.said(
        "slurm/submit_all.sh", "--dry-run", "run=${oc.env:SCRATCH}/run", cwd=root
    )

    checked = slurm.run("slurm/submit_all.sh", "--check", cwd=root)
    assert checked.returncode == (0 if torch.backends.cuda.is_built() else 1), checked.stderr
    assert "slurm/pretrain.sh" not in checked.stdout
    # A partition with less time than the scripts ask for, an hour, and none of a name.
    for variable, is_named in (
        ("PARTITION=short", True),
        ("TIMELIMIT=30", False),
        ("PARTITION=nowhere", True),
    ):
        cluster_env.write_text(f"{cluster_env.read_text()}export SBATCH_{variable}\n")
        checked = slurm.run("slurm/submit_all.sh", "--check", cwd=root)
        assert ("slurm/pretrain.sh" in checked.stdout) == is_named, variable
    (root / "study.yaml").unlink()
    assert slurm.run("slurm/submit_all.sh", "--check", cwd=root).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "sentence"), [("pretrain", "no tokenized data in run/data"), ("test_gpu", "sees no GPU")]
)
def test_a_first_job_alone_says_what_is_missing(
    slurm: LocalSlurm, root: Path, script: str, sentence: str
) -> None:
    (root / "slurm" / "cluster.env").write_text(
        f'{CLUSTER_ENV}CONTAINER="env IN_CONTAINER=1"\nexport CUDA_VISIBLE_DEVICES=\n'
    )
    (ended,) = slurm.wait(
        slurm.said("sbatch", "--parsable", "--output=%x.log", f"slurm/{script}.sh", cwd=root)
    )
    said = (root / f"{script}.log").read_text()
    assert ended["JobState"] == "FAILED" and sentence in said, said
    assert not (root / "run").exists()  # it ends before there is a log of its own


@pytest.mark.slow
def test_two_nodes_train_one_model_and_go_on_after_a_requeue(
    slurm: LocalSlurm, root: Path, text: Path
) -> None:
    """Near its time limit, a job saves and is requeued; it ends at the weights of a run without Slurm."""
    shutil.copytree(text / "data", root / "run" / "data")
    (root / "run" / "logs").mkdir()
    stopped = root / "run" / "models" / "stopped"
    words = [
        "olmo_configs/tiny.yaml",
        *SMALL,
        *(f"{name}=400" for name in ("max_duration", "save_interval", "eval_interval")),
        "--data=run/data",
        "--save-folder",
    ]
    job = "sbatch --parsable --nodes=2 --job-name=stopped --output=run/logs/%x-%j.log slurm/pretrain.sh"
    job_id = slurm.said(*job.split(), *words, str(stopped), cwd=root)
    with forked_stages.ranks("pipeline/pretrain.py", *words, "whole", cwd=root):
        forked_stages.wait_for(stopped / "metrics.jsonl")
        # As --signal=B:USR1@120 of the script has Slurm do two minutes before the time limit.
        slurm.said("scancel", "--batch", "--signal=USR1", job_id)
    (ended,) = slurm.wait(job_id)
    said = (root / "run" / "logs" / f"stopped-{job_id}.log").read_text()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), said
    assert "the time limit is near" in said and "restart 1" in said
    assert 0 < int(re.findall(r"resuming from .*step(\d+)-", said)[0]) < 400

    weights = (
        torch.load(run / "step400-unsharded/model.pt", weights_only=True) for run in (root / "whole", stopped)
    )
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    assert torch.load(stopped / "step400-unsharded/train.pt", weights_only=True)["num_ranks"] == 2
    assert pd.read_json(stopped / "metrics.jsonl", lines=True)["step"].tolist() == [*range(1, 401)]


def test_shellcheck_has_nothing_to_say() -> None:
    # The extra `test` puts it beside the interpreter, in a folder that need not be on the PATH.
    checked = subprocess.run(
        "shellcheck --external-sources slurm/*.sh",
        shell=True,
        cwd=ROOT,
        env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert (checked.returncode, checked.stdout) == (0, "")


@pytest.mark.parametrize(
    ("requeued", "code", "sentence"),
    [
        (0, 138, "back into the queue\n"),
        (1, 75, "could not requeue"),
    ],  # 138: by USR1, where Slurm would end it
)
def test_a_job_says_whether_it_is_back_in_the_queue(
    requeued: int, code: int, sentence: str, tmp_path: Path
) -> None:
    """At its time limit, on a cluster that requeues jobs or does not."""
    for name, command in {
        "srun": 'echo 1 >"$SAVED"; kill -USR1 $PPID',
        "scontrol": f"exit {requeued}",
        "scancel": "",
        "sleep": "",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{command}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "out").mkdir()
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "cluster.env").touch()
    done = subprocess.run(
        ["bash", "-c", f"source {ROOT}/slurm/job.sh; run true --out {tmp_path}/out; exit 0", "bash", "words"],
        cwd=tmp_path,
        env={
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n",
            "SLURM_NNODES": "1",
            "SLURM_JOB_NAME": "j",
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SAVED": str(tmp_path / "out" / "saved"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == code and sentence in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("stage", "is_divided"),
    [
        ("pretrain", False),
        ("train_synthetic", False),
        ("evaluate_synthetic", False),
        ("tokenize_c4", True),
        ("loss_differences", True),
        ("influential_tokens", True),
        ("evaluate_tokens", True),
    ],
)
def test_a_script_of_a_stage_stops_in_time_and_is_requeued(stage: str, is_divided: bool) -> None:
    """The tasks of an array share what is divided; one job does the rest."""
    script = (ROOT / "slurm" / f"{stage}.sh").read_text()
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", script, re.MULTILINE))
    # Appending, a requeued job goes on in its log.
    assert asked.items() >= {"job-name": stage, "signal": "B:USR1@120", "open-mode": "append"}.items()
    assert asked.keys() >= {"requeue", "time", "mem", "nodes", "cpus-per-task"}
    assert ("array" in asked) == is_divided and f"pipeline/{stage}.py" in script
