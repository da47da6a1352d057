"""The measuring stages on models of both kinds: what is accepted, recorded and refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers.dynamic_module_utils
from hugging_face_families import make_model
from measured_documents import LENGTH_LOSSES, measure, write_checkpoint, write_data
from olmo.model import OLMo

from pipeline import influential_tokens, loss_differences
from pipeline.cli import InputError
from pipeline.results.read import read_artefact, read_settings
from pipeline.training import speed as precision


@pytest.fixture
def folder(tmp_path: Path, make_olmo: Callable[..., OLMo]) -> Path:
    write_data(tmp_path / "data")
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    make_model("llama").save_pretrained(tmp_path / "tiny-llama")
    return tmp_path


def test_both_kinds_in_one_command(folder: Path) -> None:
    words = ["--checkpoints", str(folder / "run"), str(folder / "tiny-llama")]
    for stage, flags, artefact in (
        (influential_tokens, [], "influences"),
        (loss_differences, LENGTH_LOSSES, "length_losses"),
    ):
        rows = read_artefact(measure(stage, folder, *words, *flags), artefact)
        assert rows["model"].value_counts().nunique() == 1, artefact
        assert sorted(rows["model"].unique()) == ["run", "tiny-llama"], artefact


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


def test_auto_takes_the_faster_dtype_and_keeps_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["--results", str(folder / "auto"), "--documents-per-shard", "1", "--dtype"]
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda _: 4.0)
    results = measure(loss_differences, folder, *words, "auto")
    assert read_settings(results, "loss_differences")["run"]["dtype"] == "bfloat16"
    assert "bfloat16" not in caplog.text

    monkeypatch.setattr(precision, "bfloat16_speedup", lambda _: 0.2)  # the rest on another machine
    next((results / "_stages").rglob("00001-of-00003.done")).unlink()
    measure(loss_differences, folder, *words, "auto")
    assert read_settings(results, "loss_differences")["run"]["dtype"] == "bfloat16"
    assert "bfloat16 is 5.0 times slower than float32" in caplog.text
    other = measure(loss_differences, folder, *words, "auto", "--results", str(folder / "other"))
    assert read_settings(other, "loss_differences")["run"]["dtype"] == "float32"


def test_a_padded_vocabulary_fits_and_a_smaller_one_does_not(folder: Path) -> None:
    make_model("llama", vocab_size=64).save_pretrained(folder / "padded")
    measure(loss_differences, folder, "--checkpoints", str(folder / "padded"))
    make_model("llama", vocab_size=47).save_pretrained(folder / "small")
    with pytest.raises(InputError, match="48 tokens .largest ID used: 47. and .*small a vocabulary of 47"):
        measure(loss_differences, folder, "--checkpoints", str(folder / "small"))


def test_models_that_cannot_be_measured(folder: Path) -> None:
    make_model("gpt2", n_positions=8).save_pretrained(folder / "gpt2")
    for flags, sentence in (
        (f"--checkpoints {folder}/nowhere", f"there is no file or folder {folder}/nowhere"),
        (f"--checkpoints {folder}/data", f"no model at {folder}/data: expected a Hugging Face"),
        ("--revision v1", f"--revision v1 is of models on the Hugging Face hub; {folder}/run is none"),
        ("--device-map auto", f"--device-map is for Hugging Face models; {folder}/run/step20-unsharded"),
        (f"--checkpoints {folder}/gpt2", "--long-context-length 8, not 12"),
    ):
        with pytest.raises(InputError, match=sentence):
            measure(loss_differences, folder, *flags.split())
        assert not (folder / "results").exists(), flags


_OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_code_that_comes_with_a_model_runs_only_when_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(folder / "modules"))
    own = folder / "tiny-llama"
    config = json.loads((own / "config.json").read_text())
    code = {"AutoConfig": "own_model.OwnConfig", "AutoModelForCausalLM": "own_model.OwnForCausalLM"}
    (own / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": code}))
    (own / "own_model.py").write_text(_OWN_CODE)
    with pytest.raises(InputError, match="needs the Python files that come with it.*--trust-remote-code"):
        measure(loss_differences, folder, "--checkpoints", str(own))
    assert not (folder / "modules").exists()
    results = measure(loss_differences, folder, "--checkpoints", str(own), "--trust-remote-code")
    assert len(read_artefact(results, "loss_differences")) == 12
