"""A Slurm for all tests of this folder, and checkouts whose cluster.env is the tests' own."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked_stages import stand_ins
from local_slurm import LocalSlurm, local_slurm, why_not_here
from measured_documents import json_lines
from omegaconf import OmegaConf
from sparsity_length.programs import tokenize_c4

ROOT = Path(__file__).resolve().parents[2]
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
