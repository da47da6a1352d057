"""The numbers do not depend on the processor; a slim install and a wheel work.

The kernels choose their instructions when a process starts, so each choice is a pytest of its own. `default`
is the lowest that torch has: SSE, no fused multiply-add. Here and on AVX-512 both others are truly others.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from forked_stages import ROOT
from hugging_face_families import save_model

from sparsity_length.text.sources import first_passages
from sparsity_length.text.tokenizer import train_bpe

WITHOUT_NUMBERS = ("analysis", "slurm", "studies", "test_other_processors.py", "test_pages.py")
"""Tests that hold no number of torch's kernels to another."""
WITHHELD = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
}


@pytest.mark.slow
@pytest.mark.parametrize("capability", WITHHELD)
def test_the_numbers_are_right_with_other_vector_instructions(capability: str) -> None:
    # Else it would take itself for a process of this run's xdist.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    tests = [
        path.relative_to(ROOT)
        for path in sorted(ROOT.glob("tests/**/test_*.py"))
        if path.relative_to(ROOT / "tests").parts[0] not in WITHOUT_NUMBERS
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=environment | WITHHELD[capability],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("olmo", "olmo_data"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import importlib.util as util
found = util.find_spec
util.find_spec = lambda name, package=None: None if name == "olmo_data" else found(name, package)
"""


@pytest.mark.slow
def test_a_pretrained_model_is_measured_without_olmo(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", train_bpe(first_passages(20_000), 300).to_json())
    code = """
from sparsity_length import explain, influential_tokens, losses
from sparsity_length.cli import InputError
from sparsity_length.text.tokenizer import parse_tokenizer_name
text = "The cat sat on a mat, and the cat that sat there saw another cat. " * 3
folder = sys.argv[1]
assert len(losses(text, folder, short_context_length=4)) > 20
assert len(influential_tokens(text, folder, k=(1,), short_context_length=4, num_targets=2)) == 2
assert explain(text, folder, short_context_length=4, targets=1).losses["long_context_loss"].notna().all()
try:
    parse_tokenizer_name("olmo")
except InputError as error:
    print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT + code, model], cwd=ROOT, capture_output=True, text=True
    )
    assert "ai2-olmo, which is not installed" in ended.stdout, ended.stderr


WITHOUT_CHECKOUT = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if getattr(one, "__name__", "") != "_EditableFinder"]
from sparsity_length.cli import main
main()
"""


@pytest.mark.slow
def test_a_wheel_works_beside_files_of_the_repositorys_names(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("sparsity_length", "pipeline", "analysis", "olmo_configs"):
        shutil.copytree(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path]
    subprocess.run([*build, source], check=True)
    [wheel] = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    ZipFile(wheel).extractall(installed)
    assert [path.name for path in installed.iterdir() if path.suffix != ".dist-info"] == ["sparsity_length"]
    theirs = tmp_path / "theirs"
    for name in ("pipeline.py", "analysis/__init__.py", "olmo_configs/__init__.py", "tests/__init__.py"):
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_text("raise RuntimeError('not the repository')")
    passages = first_passages(20_000)
    model = save_model(tmp_path / "model", train_bpe(passages, 300).to_json())
    (theirs / "letter.txt").write_text(passages[0][:2000])
    for program in (
        ["explain", "--model", model, "--text-file", "letter.txt"],
        ["study", "olmo_configs/studies/demo.yaml", "--dry-run"],
    ):
        command = [sys.executable, "-c", WITHOUT_CHECKOUT, *program]
        environment = os.environ | {"PYTHONPATH": str(installed)}
        ended = subprocess.run(command, cwd=theirs, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    assert (theirs / "explained.html").exists()
