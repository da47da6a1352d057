"""The numbers do not depend on the processor: the tests of numbers, with vector instructions withheld.

The kernels choose their instructions when a process starts, so each choice is a pytest of its own. `default`
is the lowest that torch has: SSE, no fused multiply-add. Here and on AVX-512 both others are truly others.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WITHOUT_NUMBERS = ("analysis", "slurm", "studies", "test_other_processors.py", "test_pages.py")
"""Tests that hold no number of torch's kernels to another."""
WITHHELD = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
}


@pytest.mark.slow
@pytest.mark.parametrize("capability", WITHHELD)
def test_the_numbers_are_right_with_other_vector_instructions(capability: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # Else it would take itself for a process of this run's xdist.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    tests = [
        path.relative_to(ROOT)
        for path in sorted(ROOT.glob("tests/**/test_*.py"))
        if path.relative_to(ROOT / "tests").parts[0] not in WITHOUT_NUMBERS
    ]
    done = subprocess.run(
        [*command, *tests],
        cwd=ROOT,
        env=environment | WITHHELD[capability],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
