"""The measuring stages on models of both kinds: what is accepted, recorded and refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hugging_face_families import make_model
from measured_documents import measure, write_checkpoint, write_data
from olmo.model import OLMo

from pipeline import loss_differences
from pipeline.cli import InputError
from pipeline.results.read import read_artefact, read_settings


@pytest.fixture
def folder(tmp_path: Path, make_olmo: Callable[..., OLMo]) -> Path:
    write_data(tmp_path / "data")
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    make_model("llama").save_pretrained(tmp_path / "tiny-llama")
    return tmp_path


@pytest.mark.parametrize("model", ["run", "tiny-llama"])
def test_bfloat16_is_close_and_recorded(model: str, folder: Path) -> None:
    words = ["--checkpoints", str(folder / model)]
    exact = measure(loss_differences, folder, *words)
    to_coarse = ["--dtype", "bfloat16", "--results", str(folder / "coarse")]
    coarse = measure(loss_differences, folder, *words, *to_coarse)
    losses = [read_artefact(results, "loss_differences")["long_context_loss"] for results in (exact, coarse)]
    assert 0 < (losses[0] - losses[1]).abs().max() < 0.1
    assert read_settings(coarse, "loss_differences")[model]["dtype"] == "bfloat16"
    with pytest.raises(InputError, match="dtype was 'float32', now 'bfloat16'"):
        measure(loss_differences, folder, *words, "--dtype", "bfloat16")


def test_a_padded_vocabulary_fits_and_a_smaller_one_does_not(folder: Path) -> None:
    make_model("llama", vocab_size=64).save_pretrained(folder / "padded")
    measure(loss_differences, folder, "--checkpoints", str(folder / "padded"))
    make_model("llama", vocab_size=47).save_pretrained(folder / "small")
    with pytest.raises(InputError, match="48 tokens .largest ID used: 47. and .*small a vocabulary of 47"):
        measure(loss_differences, folder, "--checkpoints", str(folder / "small"))
