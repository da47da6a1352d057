"""Tiny OLMo models that every test may use; how the tests are shared among processes.

`make test` runs one process per core (pytest-xdist), and a whole file in one process: fixtures of a file or
of the session are made once in each process that needs them. So a test may not rely on another file's tests,
write anywhere but in its own folders (`tmp_path`, `tmp_path_factory`), take a fixed port, or look for
processes other than its own. Its name, parameters included, must be the same in every process, and quick
to make: every process collects all tests. Waiting needs a generous limit: the other processes keep the
cores busy.

A test runs a stage in this process (`stage.STAGE(words)`). If it is about processes, it forks one
(forked_stages.py); only if it is about the command does it start one, whose imports take seconds.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

# Tests multiply tiny matrices: threads only cost, and on a busy machine they cost minutes. Set before torch
# is imported, and so for the processes that tests start, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Results record the commit, and tests compare bytes of several processes: to all it is "unknown", for else
# it would be another once the tree is edited, or committed to, while the tests run.
os.environ["GIT_DIR"] = os.devnull

import forked_stages
import pytest

# torch and olmo are imported late: the process that only deals the tests out starts in an instant without.
if TYPE_CHECKING:
    import execnet
    from olmo.model import OLMo

LONGEST_FIRST = (
    "tests/real/test_smollm2.py",
    "tests/test_explain.py",
    "tests/analysis/test_interference.py",
    "tests/slurm/test_jobs.py",
    "tests/analysis/test_notebooks.py",
    "tests/test_pages.py",
    "tests/test_pretrain.py",
    "tests/analysis/test_pages_in_chromium.py",
    "tests/studies/test_study_end_to_end.py",
    "tests/golden/test_golden.py",
    "tests/influence/test_brute_force.py",
    "tests/measuring/test_mean_log2_k.py",
    "tests/test_sparsity_length.py",
    "tests/results/test_any_reader.py",
    "tests/training/test_training_loop.py",
    "tests/models/test_huggingface.py",
    "tests/test_train_synthetic.py",
    "tests/synthetic/test_tasks.py",
    "tests/measuring/test_evaluate_checkpoints.py",
    "tests/test_stage.py",
    "tests/analysis/test_explorer_records.py",
    "tests/test_tokenize_c4.py",
)
"""The files that take longest: one that starts last would keep the other processes waiting."""
MOST_PROCESSES = 8  # of about half a GiB each


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what needs a GPU where none can be used, and, for .ci/run, what would begin too late.

    That is after BEGIN_TESTS_UNTIL, in seconds since 1970.
    """
    import torch

    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("needs a GPU: make test-gpu, where one can be used")
    if time.time() > float(os.environ.get("BEGIN_TESTS_UNTIL", "inf")):
        pytest.skip("the time is over: make test-all runs it")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where the time was over before any test could run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if "BEGIN_TESTS_UNTIL" in os.environ and reporter is not None and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPUs from all tests but those marked gpu: the others' numbers are a CPU's on any machine.

    The processes of pytest-xdist share the one that forks programs.
    """
    if "gpu" not in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if config.getoption("numprocesses", None):  # None in those that run tests
        forked_stages.share_one_server()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: "Sequence[execnet.XSpec]") -> None:
    """Fork the processes of tests from one that has imported the libraries, which costs each ten seconds."""
    for spec in specs:
        spec.python = str(forked_stages.python_that_forks())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means: a process for each core that this one may use."""
    return min(len(os.sched_getaffinity(0)), MOST_PROCESSES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first."""
    place = {name: index for index, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Leave out fsync in this process: only a loss of power tells files with it from files without."""
    with mock.patch("os.fsync"):
        yield


@pytest.fixture(scope="session")
def make_olmo() -> "Callable[..., OLMo]":
    """A function making a small random OLMo in float32: make_olmo(seed=0, **model_config_fields)."""
    import torch
    from olmo.config import ModelConfig
    from olmo.model import OLMo

    def make(seed: int = 0, **fields: object) -> OLMo:
        torch.manual_seed(seed)
        config = {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "mlp_ratio": 2,
            "rope": True,
            "include_bias": False,
            "layer_norm_type": "default",
            "layer_norm_with_affine": False,
            "bias_for_layer_norm": False,
            "attention_dropout": 0.0,
            "residual_dropout": 0.0,
            "embedding_dropout": 0.0,
            "max_sequence_length": 64,
            "vocab_size": 48,
            "embedding_size": 48,
            "eos_token_id": 0,
            "pad_token_id": 0,
            "init_device": "cpu",
            "init_std": 0.3,
        } | fields
        return OLMo(ModelConfig.new(**config)).eval()

    return make


@pytest.fixture
def typed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> "Callable[..., tuple[object, str, str]]":
    """A function calling a program's main function as its command does: exit code, output, errors."""

    def run(main: "Callable[[], object]", *words: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        with pytest.raises(SystemExit) as end:
            main()
            sys.exit(0)  # as Python does behind a program
        return end.value.code, *capfd.readouterr()

    return run


@pytest.fixture(scope="session")
def measurable(tmp_path_factory: pytest.TempPathFactory, make_olmo: "Callable[..., OLMo]") -> Path:
    """What the measuring stages are run on, for all tests that write nothing there."""
    from measured_documents import write_measurable

    return write_measurable(tmp_path_factory.mktemp("measurable"), make_olmo(seed=1))


@pytest.fixture
def folder(measurable: Path, tmp_path: Path) -> Path:
    """The same in the test's own folder."""
    return shutil.copytree(measurable, tmp_path, dirs_exist_ok=True)


@pytest.fixture(autouse=True)
def no_rules_of_others() -> "Iterator[None]":
    """Rules that a test registers are gone after it."""
    with mock.patch.dict("sparsity_length.measuring.rules.RULES"):
        yield
