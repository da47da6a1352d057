"""From text to results by the commands themselves, from another directory and not installed.

Tokenizing and one measuring stage are started as typed; the others, which need the same libraries, are
forked.
Then once more with influential_tokens killed in the middle: the same bytes must come out.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import forked_stages
import numpy as np
import pyarrow.parquet as pq
import pytest
from forked_stages import ForkedStage
from measured_documents import json_lines

from pipeline.results.read import artefacts_in, read_artefact
from pipeline.results.schemas import SCHEMAS
from pipeline.text.folder import TokenizedData

ROOT = Path(__file__).resolve().parents[2]
NUM_STEPS = 6
PRETRAIN = [
    str(ROOT / "olmo_configs" / "tiny.yaml"), "--data", "data", "--save-folder", "run", "model.d_model=32",
    "model.n_heads=2", "model.n_layers=1", "model.max_sequence_length=64", "train_context_length=16",
    "position_scheme=pose", "pose_target_length=64", "global_train_batch_tokens=256",
    "device_train_microbatch_tokens=256", "scheduler.t_warmup=2", "precision=fp32", "save_interval=3",
    f"max_duration={NUM_STEPS}",
]  # fmt: skip
MEASURE = [
    "--data", "data", "--checkpoints", "run", "--long-context-length", "64", "--targets-per-chunk", "4",
    "--device", "cpu",
]  # fmt: skip
SHORT = ["--short-context-length", "8"]
INFLUENTIAL = [*MEASURE, *SHORT, "--k", "1", "4"]


def command(*words: str, folder: Path) -> "subprocess.Popen[str]":
    """Start a command in `folder`, outside the repository and without it on the path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        [sys.executable, *words], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )


def start(stage: str, flags: Sequence[str], folder: Path) -> "subprocess.Popen[str]":
    return command(str(ROOT / "pipeline" / f"{stage}.py"), *flags, folder=folder)


def finish(process: "ForkedStage | subprocess.Popen[str]") -> str:
    """What the command said, once it has ended well."""
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything made once: corpus, data, run, and the results of the three measuring stages."""
    folder = tmp_path_factory.mktemp("end_to_end")
    (folder / "corpus.jsonl").write_text(json_lines(0, 40, 60))  # about twelve evaluate
    tokenize = ["--out", "data", "--source", "corpus.jsonl", "--tokenizer", "bpe:300"]
    finish(start("tokenize_c4", [*tokenize, "--evaluation-fraction", "0.3"], folder))
    finish(forked_stages.start("pipeline/pretrain.py", *PRETRAIN, cwd=folder))
    results = ["--results", "results"]
    together = [
        start("loss_differences", [*MEASURE, *SHORT, *results], folder),
        forked_stages.start(
            "pipeline/loss_differences.py", *MEASURE, *results, "--context-lengths", cwd=folder
        ),
        forked_stages.start("pipeline/influential_tokens.py", *INFLUENTIAL, *results, cwd=folder),
    ]
    for process in together:
        finish(process)
    return folder


def parquet_files(results: Path) -> dict[str, bytes]:
    return {str(path.relative_to(results)): path.read_bytes() for path in results.rglob("*.parquet")}


def test_every_artefact_is_complete(folder: Path) -> None:
    results = folder / "results"
    of_influences = {"influential_tokens", "influences", "sparse_context_losses", "dependency_sparsity"}
    assert set(artefacts_in(results)) == {"loss_differences", "length_losses", *of_influences}
    num_documents = sum(
        len(document.token_ids) >= 64
        for document in TokenizedData.open(folder / "data").evaluation_documents()
    )
    assert num_documents >= 8  # fewer would leave the kill below too little time
    for artefact in artefacts_in(results):
        rows = read_artefact(results, artefact)
        assert rows["model"].unique().tolist() == ["run"]
        assert rows["document_id"].nunique() == num_documents
        assert not list(results.rglob("*.part"))
        for path in (results / artefact).rglob("*.parquet"):
            assert pq.read_schema(path).equals(SCHEMAS[artefact])
    assert len(list((results / "influences/model=run").iterdir())) == num_documents


def test_the_stages_agree_on_the_losses_they_share(folder: Path) -> None:
    results, target = folder / "results", ["document_id", "chunk_index", "target_position"]
    differences = read_artefact(results, "loss_differences").set_index(target).sort_index()
    sparse = read_artefact(results, "sparse_context_losses").drop_duplicates(target).set_index(target)
    for loss in ("short_context_loss", "long_context_loss"):
        np.testing.assert_allclose(sparse[loss].sort_index(), differences[loss], atol=1e-5)
    lengths = read_artefact(results, "length_losses").query("context_length == 8")
    mean = (lengths["mean_loss"] * lengths["num_targets"]).sum() / lengths["num_targets"].sum()
    np.testing.assert_allclose(mean, differences["short_context_loss"].mean(), atol=1e-5)


@pytest.mark.slow
def test_as_a_module_it_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    here = {"data": str(folder / "data"), "run": str(folder / "run")}
    flags = [here.get(word, word) for word in [*MEASURE, *SHORT, "--results", str(tmp_path)]]
    finish(command("-m", "pipeline.loss_differences", *flags, folder=ROOT))
    assert parquet_files(tmp_path).items() <= parquet_files(folder / "results").items()


def test_a_killed_run_resumes_to_the_same_bytes(folder: Path) -> None:
    whole, resumed = folder / "results", folder / "resumed"
    flags = [*INFLUENTIAL, "--results", resumed.name]
    marks = resumed / "_stages" / "influential_tokens" / "model=run"
    process = forked_stages.start("pipeline/influential_tokens.py", *flags, cwd=folder)
    deadline = time.monotonic() + 120
    while not list(marks.glob("*.done")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = {path: path.stat().st_mtime_ns for path in marks.glob("*.done")}
    num_shards = len(list((whole / "influences/model=run").iterdir()))
    assert 1 <= len(finished) < num_shards, "the kill came too late to show anything"

    finish(forked_stages.start("pipeline/influential_tokens.py", *flags, cwd=folder))
    assert len(list(marks.glob("*.done"))) == num_shards
    assert {path: path.stat().st_mtime_ns for path in finished} == finished  # not done twice
    artefacts = {"influential_tokens", "influences", "sparse_context_losses", "dependency_sparsity"}
    expected = {
        path: content for path, content in parquet_files(whole).items() if path.split("/", 1)[0] in artefacts
    }
    assert len(expected) == 4 * num_shards
    assert parquet_files(resumed) == expected
    assert not list(resumed.rglob("*.part"))
