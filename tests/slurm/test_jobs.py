"""The sbatch scripts as text, and on a real Slurm on this machine: one controller, two nodes.

Nothing is written outside its own folder. No cgroups, no accounting database, no munge: so it listens on
loopback only, which needs the short host name to be a loopback address, as it is in containers and in CI.
"""

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import forked_stages
import pytest
import torch
from forked_stages import stand_ins
from measured_documents import json_lines
from omegaconf import OmegaConf
from sparsity_length.programs import loss_differences, tokenize_c4

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "srun", "sinfo", "squeue")
NODES = ("node0", "node1")
_GPUS_PER_NODE = 4
Job = dict[str, str]
"""One job, or one task of an array, as `scontrol show job -o` tells it: JobState, ExitCode, Restarts, …"""
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"}
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
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
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={first_port} CPUs=16 RealMemory=256000 Gres=gpu:4
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={second_port} CPUs=16 RealMemory=256000 Gres=gpu:4
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=ALL MaxTime=60 State=UP
"""


def why_not_here() -> str | None:
    """The reason why no Slurm can be started on this machine; None if one can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"no Slurm here ({', '.join(missing)} not found); .ci/run installs it where it can"
    host = socket.gethostname().partition(".")[0]
    try:
        address = socket.gethostbyname(host)
    except OSError:
        address = "unknown"
    if not address.startswith("127."):
        return f"host name {host} is {address} and not loopback: a Slurm without munge must not listen there"
    return None


def _configure(folder: Path) -> None:
    for name in ("state", "gpus", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    for index in range(_GPUS_PER_NODE):  # a device of its own kind for the scheduler
        (folder / "gpus" / f"gpu{index}").symlink_to("/dev/null")
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpus/gpu[0-{_GPUS_PER_NODE - 1}]\n")
    with socket.socket() as controller, socket.socket() as first, socket.socket() as second:
        ports = []
        for listener in (controller, first, second):
            listener.bind(("127.0.0.1", 0))
            ports.append(listener.getsockname()[1])
    configuration = _CONFIGURATION.format(
        host=socket.gethostname().partition(".")[0],
        user=getpass.getuser(),
        folder=folder,
        controller_port=ports[0],
        first_port=ports[1],
        second_port=ports[2],
    )
    (folder / "slurm.conf").write_text(configuration)


class LocalSlurm:
    """The running Slurm whose files are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        foreign = re.compile("SLURM|SBATCH|SRUN|PYTHONPATH")
        self._environment = {name: value for name, value in os.environ.items() if not foreign.match(name)}
        self._environment["SLURM_CONF"] = str(folder / "slurm.conf")

    def run(self, *words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        """Run a command, as a user of this Slurm would type it."""
        return subprocess.run(
            words, cwd=cwd, env=self._environment, capture_output=True, text=True, timeout=300
        )

    def submit(self, *words: str, cwd: Path) -> str:
        """The ID of the job that `sbatch words` makes."""
        done = self.run("sbatch", "--parsable", *words, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def jobs(self, job_id: str) -> list[Job]:
        """The job, or every task of the array."""
        done = self.run("scontrol", "show", "job", "-o", job_id, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in done.stdout.splitlines()]

    def wait(self, *job_ids: str, timeout: float = 240) -> list[Job]:
        """All of them once they have ended, in order; a job that waits for a requeue has not."""
        deadline = time.monotonic() + timeout
        while True:
            jobs = [job for job_id in job_ids for job in self.jobs(job_id)]
            if all(job["JobState"] in _ENDED for job in jobs):
                return jobs
            states = [(job["JobId"], job["JobState"], job["Reason"]) for job in jobs]
            assert time.monotonic() < deadline, f"not ended after {timeout} s: {states}"
            time.sleep(0.3)

    def signal_near_time_limit(self, job_id: str) -> None:
        """What #SBATCH --signal=B:USR1@120 has Slurm do two minutes before the time limit, now."""
        done = self.run("scancel", "--batch", "--signal=USR1", job_id, cwd=self.folder)
        assert done.returncode == 0, done.stderr


@contextmanager
def local_slurm(folder: Path) -> Iterator[LocalSlurm]:
    """Start a Slurm in `folder`, which must be short (sockets) and readable, and stop it on leaving."""
    folder.chmod(0o755)
    _configure(folder)
    slurm = LocalSlurm(folder)
    commands = [["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in NODES)]
    with (folder / "daemons.log").open("w") as log:
        daemons = [
            subprocess.Popen(command, env=slurm._environment, stdout=log, stderr=log) for command in commands
        ]
    try:
        _await_idle_nodes(slurm)
        yield slurm
    finally:
        _end_jobs(slurm)
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _end_jobs(slurm: LocalSlurm) -> None:
    """Cancel what a failed test left, so that no process outlives the Slurm that started it."""
    slurm.run("scancel", "--user", getpass.getuser(), cwd=slurm.folder)
    deadline = time.monotonic() + 30
    while slurm.run("squeue", "-h", cwd=slurm.folder).stdout and time.monotonic() < deadline:
        time.sleep(0.2)


def _await_idle_nodes(slurm: LocalSlurm) -> None:
    deadline = time.monotonic() + 60
    while True:
        states = slurm.run("sinfo", "-h", "-N", "-o", "%T", cwd=slurm.folder).stdout.split()
        if set(states) == {"idle"}:
            return
        log = (slurm.folder / "daemons.log").read_text()
        assert time.monotonic() < deadline, f"Slurm did not come up: {states}\n{log}"
        time.sleep(0.2)


# The proxies lead nowhere: whatever asks for a network is refused, as on a compute node.
CLUSTER_ENV = """
export PATH={programs}:$PATH OMP_NUM_THREADS={threads}
STUDY=study.yaml
export http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 all_proxy=http://127.0.0.1:9
"""
STUDY = {
    "run": "run",
    "data": {"source": ["train-*.jsonl"], "evaluation_source": ["validation.jsonl"], "tokenizer": ""},
    "sizes_in_names": False,
    "sizes": {"small": {"config": "", "overrides": ["eval_context_lengths=[16,64]"]}},
    "models": {
        "short-pose": {"train_context_length": 16, "position_scheme": "pose", "pose_target_length": 64},
        "long-seed1": {"train_context_length": 64, "seed": 1},
    },
    "evaluation": {
        "stages": ["loss_differences", "length_losses", "influential_tokens"],
        "influential_tokens": {"models": ["long-seed1"]},
        "short_context_length": 8,
        "long_context_length": 64,
        "targets_per_chunk": 4,
        "max_documents": 6,
    },
    "slurm": {"tokenize": 2, "measure": 2},
}
SMALL = {
    "model": {"d_model": 16, "n_heads": 2, "n_layers": 1, "residual_dropout": 0.1, "max_sequence_length": 64},
    "scheduler": {"t_warmup": 2},
    "global_train_batch_tokens": 256,
    "device_train_microbatch_tokens": 128,
    "precision": "fp32",
    "max_duration": 6,
    "eval_interval": 6,
    "eval_num_documents": 4,
}


@pytest.fixture(scope="session")
def slurm() -> Iterator[LocalSlurm]:
    reason = why_not_here()
    if reason is not None:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, local_slurm(Path(folder)) as slurm:
        yield slurm


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of training text, one of validation text, all of it tokenized in `data`, a small model."""
    folder = tmp_path_factory.mktemp("text")
    for seed, (name, number) in enumerate({"train-0": 20, "train-1": 20, "validation": 6}.items()):
        (folder / f"{name}.jsonl").write_text(json_lines(seed, number, 80))
    config = OmegaConf.merge(OmegaConf.load(ROOT / "olmo_configs" / "tiny.yaml"), SMALL)
    OmegaConf.save(config, folder / "small.yaml")
    words = ["--out", f"{folder}/data", "--tokenizer", "bpe:300", "--source", f"{folder}/train-*.jsonl"]
    words += ["--evaluation-source", f"{folder}/validation.jsonl"]
    tokenize_c4.STAGE(words)
    return folder


@pytest.fixture(scope="session")
def make_checkout(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function making the repository's root as far as jobs need it, with a study.yaml.

    Others stand in for the `python` and `torchrun` of its jobs, which saves the imports.
    """

    def make() -> Path:
        root = tmp_path_factory.mktemp("checkout")
        shutil.copytree(ROOT / "slurm", root / "slurm", ignore=shutil.ignore_patterns("cluster.env"))
        for name in ("pipeline", "olmo_configs"):
            (root / name).symlink_to(ROOT / name)
        programs = stand_ins(tmp_path_factory.mktemp("programs"))
        # As many threads as this process has: the last bits of a sum depend on who adds up what.
        cluster_env = CLUSTER_ENV.format(programs=programs, threads=os.environ["OMP_NUM_THREADS"])
        (root / "slurm" / "cluster.env").write_text(cluster_env)
        study = OmegaConf.create(STUDY)
        study.data.source = [f"{text}/train-*.jsonl"]
        study.data.evaluation_source = [f"{text}/validation.jsonl"]
        study.data.tokenizer = f"{text}/data/tokenizer.json"
        study.sizes.small.config = f"{text}/small.yaml"
        OmegaConf.save(study, root / "study.yaml")
        return root

    return make


NUM_STEPS = 400


def submit_all(slurm: LocalSlurm, root: Path) -> list[str]:
    """The IDs of all jobs, in order, as `study.py --slurm` prints them."""
    submitted = slurm.run("slurm/submit_all.sh", cwd=root)
    assert submitted.returncode == 0, submitted.stderr
    return [line.split()[1].rstrip(":") for line in submitted.stdout.splitlines()]


def log(root: Path, name: str, job_id: str) -> str:
    path = root / "run" / "logs" / f"{name}-{job_id}.log"
    return path.read_text() if path.exists() else ""


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
    assert len(files) == 2 * 6  # one shard per document, as there are so few
    for name, content in files.items():
        assert (root / "run/results" / name).read_bytes() == content


@pytest.mark.slow
def test_a_study_runs_within_one_job(slurm: LocalSlurm, make_checkout: Callable[..., Path]) -> None:
    root = make_checkout()
    job_id = slurm.submit(
        "--output=%x.log", "slurm/study.sh", "study.yaml", "models.short-pose=null", cwd=root
    )
    said = (states(slurm.wait(job_id, timeout=500)), (root / "study.log").read_text()[-2000:])
    assert said[0] == {"COMPLETED"}, said
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
    for variable, is_named in (
        ("PARTITION=short", True),
        ("TIMELIMIT=30", False),
        ("PARTITION=nowhere", True),
    ):
        with cluster_env.open("a") as file:
            file.write(f"export SBATCH_{variable}\n")
        said = slurm.run("slurm/submit_all.sh", "--check", cwd=root).stdout
        assert ("slurm/pretrain.sh" in said) == is_named, variable
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
        deadline = time.monotonic() + 240
        while not metrics.exists() or not metrics.stat().st_size:
            assert time.monotonic() < deadline, "no first steps within 240 s"
            time.sleep(0.1)
        slurm.signal_near_time_limit(job_id)
    (ended,) = slurm.wait(job_id)
    said = log(root, "stopped", job_id)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), said
    assert "the time limit is near" in said and "restart 1" in said
    saved = int(said.split("resuming from ")[1].split("step")[1].split("-")[0])
    assert 0 < saved < NUM_STEPS

    last = f"step{NUM_STEPS}-unsharded"
    weights = [torch.load(folder / last / "model.pt", weights_only=True) for folder in (whole, stopped)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert torch.load(stopped / last / "train.pt", weights_only=True)["num_ranks"] == 2
    steps_logged = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps_logged == list(range(1, NUM_STEPS + 1))


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
    assert ("could not requeue" in done.stdout) == (not requeues)


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
