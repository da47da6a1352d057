"""A slim install, without ai2-olmo: pretrained models are measured; training says what to do."""

import subprocess
import sys
from pathlib import Path

import pytest
from hugging_face_families import make_model

from sparsity_length.text.sources import first_passages
from sparsity_length.text.tokenizer import train_bpe

ROOT = Path(__file__).resolve().parents[1]
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


def python(code: str, *words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", WITHOUT + code, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slim") / "model"
    tokenizer = train_bpe(first_passages(20_000), 300)
    make_model("llama", vocab_size=tokenizer.vocabulary_size).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.to_json())
    return folder


@pytest.mark.slow
def test_a_pretrained_model_is_measured(model: Path) -> None:
    code = """
from sparsity_length import explain, influential_tokens, losses
text = "The cat sat on a mat, and the cat that sat there saw another cat. " * 3
folder = sys.argv[1]
assert len(losses(text, folder, short_context_length=4)) > 20
assert len(influential_tokens(text, folder, k=(1,), short_context_length=4, num_targets=2)) == 2
assert explain(text, folder, short_context_length=4, targets=1).losses["long_context_loss"].notna().all()
print("measured")
"""
    ended = python(code, model)
    assert ended.stdout.splitlines()[-1:] == ["measured"], ended.stderr
