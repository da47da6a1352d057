"""A Slurm for all tests of this folder, and checkouts whose cluster.env is the tests' own."""

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_slurm import LocalSlurm, local_slurm, why_not_here
from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parents[2]
# The proxies lead nowhere: whatever asks for a network is refused, as on a compute node.
CLUSTER_ENV = """
export PATH={programs}:$PATH OMP_NUM_THREADS=1
export http_proxy=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9 all_proxy=http://127.0.0.1:9
export RUN={root}/run
TRAIN_TEXT="{text}/train-*.jsonl"
VALIDATION_TEXT={text}/validation.jsonl
TOKENIZER={text}/data/tokenizer.json
CONFIG={text}/small.yaml
SHORT_TRAIN=16 LONG=64 SHORT=8 TARGETS=4 DOCUMENTS=6
TOKENIZE_SHARDS=2 MEASURE_SHARDS=2
"""
SMALL = {
    "model": {"d_model": 16, "n_heads": 2, "n_layers": 1, "residual_dropout": 0.1, "max_sequence_length": 64},
    "scheduler": {"t_warmup": 2},
    "global_train_batch_tokens": 256,
    "device_train_microbatch_tokens": 128,
    "precision": "fp32",
    "console_log_interval": 1,
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
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdeghilmnorstu", k=generator.randint(2, 7))) for _ in range(80)]
    for name, num_documents in {"train-0": 20, "train-1": 20, "validation": 6}.items():
        texts = (" ".join(generator.choices(words, k=80)) for _ in range(num_documents))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = OmegaConf.merge(OmegaConf.load(ROOT / "olmo_configs" / "tiny.yaml"), SMALL)
    OmegaConf.save(config, folder / "small.yaml")
    stage = [
        sys.executable,
        str(ROOT / "pipeline" / "tokenize_c4.py"),
        "--out",
        "data",
        "--tokenizer",
        "bpe:300",
    ]
    source = ["--source", "train-*.jsonl", "--evaluation-source", "validation.jsonl"]
    subprocess.run([*stage, *source], cwd=folder, check=True, timeout=240)
    return folder


@pytest.fixture(scope="session")
def make_checkout(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function making the repository's root as far as jobs need it, with changes in its cluster.env."""

    def make(**changes: str) -> Path:
        root = tmp_path_factory.mktemp("checkout")
        shutil.copytree(ROOT / "slurm", root / "slurm", ignore=shutil.ignore_patterns("cluster.env"))
        for name in ("pipeline", "olmo_configs"):
            (root / name).symlink_to(ROOT / name)
        lines = CLUSTER_ENV.format(programs=Path(sys.executable).parent, root=root, text=text)
        lines += "".join(f"{name}={value}\n" for name, value in changes.items())
        (root / "slurm" / "cluster.env").write_text(lines)
        return root

    return make
