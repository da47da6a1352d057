"""The numbers do not depend on the processor: the tests of numbers, with vector instructions withheld.

The kernels choose their instructions when a process starts, so each choice is a pytest of its own. `default`
is the lowest that torch has: SSE, no fused multiply-add. Here and on AVX-512 both others are truly others.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NUMBER_TESTS = [
    "devices", "end_to_end", "golden", "influence", "measuring", "models", "synthetic", "training",
    "analysis/test_long_perplexity.py", "test_benchmarks_run.py", "test_explain.py", "test_every_rule.py",
    "test_export_huggingface.py", "test_found_dependencies.py", "test_influential_tokens.py",
    "test_length_losses.py", "test_loss_differences.py", "test_plant_needles.py", "test_pretrain.py",
    "test_sparse_functional_attention.py", "test_sparsity_length.py", "test_stage.py",
    "test_train_synthetic.py",
]  # fmt: skip
OTHERS = ["analysis", "slurm", "studies", "test_other_processors.py", "test_start.py"]
"""Tests that name torch, or run programs that use it, and hold no number of its kernels to another."""
WITHHELD = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
}


def test_whatever_uses_torch_is_among_them() -> None:
    tests = ROOT / "tests"
    using = {
        path.relative_to(tests).parts[0]
        for path in tests.rglob("test_*.py")
        if re.search(r"\b(torch|make_olmo|write_checkpoint)\b", path.read_text(encoding="utf-8"))
    }
    assert using - {*OTHERS} <= {*NUMBER_TESTS}
    assert all((tests / name).exists() for name in (*NUMBER_TESTS, *OTHERS))


@pytest.mark.slow
@pytest.mark.parametrize("capability", WITHHELD)
def test_the_numbers_are_right_with_other_vector_instructions(capability: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # Else it would take itself for a process of this run's xdist.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, *(f"tests/{name}" for name in NUMBER_TESTS)],
        cwd=ROOT, env=environment | WITHHELD[capability], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
