"""A real Slurm on this machine, as plain processes: one controller, and two nodes that are this one.

Nothing is written outside its own folder. No cgroups, no accounting database, no munge: so it listens on
loopback only, which needs the short host name to be a loopback address, as it is in containers and in CI.
"""

import getpass
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    """The reason why no Slurm can be started on this machine; None where one can."""
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
