"""From text to results by the commands themselves, from another directory and not installed."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from measured_documents import json_lines

from sparsity_length.results.read import Results
from sparsity_length.results.schemas import SCHEMAS
from sparsity_length.text.folder import TokenizedData

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
NUM_STEPS = 6
PRETRAIN = [
    str(ROOT / "olmo_configs" / "tiny.yaml"),
    "--data",
    "data",
    "--save-folder",
    "run",
    "model.d_model=32",
    "model.n_heads=2",
    "model.n_layers=1",
    "model.max_sequence_length=64",
    "train_context_length=16",
    "position_scheme=pose",
    "pose_target_length=64",
    "global_train_batch_tokens=256",
    "device_train_microbatch_tokens=256",
    "scheduler.t_warmup=2",
    "precision=fp32",
    "save_interval=3",
    f"max_duration={NUM_STEPS}",
]
MEASURE = [
    "--data",
    "data",
    "--checkpoints",
    "run",
    "--long-context-length",
    "64",
    "--targets-per-chunk",
    "4",
    "--device",
    "cpu",
]
SHORT = ["--short-context-length", "8"]
INFLUENTIAL = [*MEASURE, *SHORT, "--k", "1", "4"]


def start(stage: str, flags: Sequence[str], folder: Path) -> "subprocess.Popen[str]":
    """Start a program in `folder`, outside the repository and without it on the path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "pipeline" / f"{stage}.py"), *flags],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> str:
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
    finish(start("pretrain", PRETRAIN, folder))
    results = ["--results", "results"]
    together = [
        start("loss_differences", [*MEASURE, *SHORT, *results], folder),
        start("loss_differences", [*MEASURE, *results, "--context-lengths"], folder),
        start("influential_tokens", [*INFLUENTIAL, *results], folder),
    ]
    for process in together:
        finish(process)
    return folder


def test_every_artefact_is_complete(folder: Path) -> None:
    results = folder / "results"
    of_influences = {"influential_tokens", "influences", "sparse_context_losses", "dependency_sparsity"}
    assert set(Results(results).tables) == {"loss_differences", "length_losses", *of_influences}
    num_documents = sum(
        len(document.token_ids) >= 64
        for document in TokenizedData.open(folder / "data").evaluation_documents()
    )
    assert num_documents >= 8  # fewer would leave the kill below too little time
    for artefact in Results(results).tables:
        rows = Results(results).frame(artefact)
        assert rows["model"].unique().tolist() == ["run"]
        assert rows["document_id"].nunique() == num_documents
        assert not list(results.rglob("*.part"))
        for path in (results / artefact).rglob("*.parquet"):
            assert pq.read_schema(path).equals(SCHEMAS[artefact])
    assert len(list((results / "influences/run").iterdir())) == num_documents


def test_the_stages_agree_on_the_losses_they_share(folder: Path) -> None:
    results = folder / "results"
    target = ["document_id", "chunk_index", "target_position"]
    differences = Results(results).frame("loss_differences").set_index(target).sort_index()
    sparse = Results(results).frame("sparse_context_losses").drop_duplicates(target).set_index(target)
    for loss in ("short_context_loss", "long_context_loss"):
        np.testing.assert_allclose(sparse[loss].sort_index(), differences[loss], atol=1e-5)
    lengths = Results(results).frame("length_losses").query("context_length == 8")
    mean = (lengths["mean_loss"] * lengths["num_targets"]).sum() / lengths["num_targets"].sum()
    np.testing.assert_allclose(mean, differences["short_context_loss"].mean(), atol=1e-5)
