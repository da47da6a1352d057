import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from olmo.model import OLMo
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM

from pipeline import export_huggingface
from pipeline.cli import InputError
from pipeline.models.load import find_model
from pipeline.text import folder as tokenized_data
from pipeline.text.folder import TokenizedData

MakeOLMo = Callable[..., OLMo]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenizedData:
    """Data of 48 words as far as the export reads it."""
    vocabulary = {f"word{index}": index for index in range(48)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="word1")).save(str(tmp_path / "tokenizer.json"))
    data = TokenizedData.__new__(TokenizedData)
    for name, value in {"folder": tmp_path, "vocabulary_size": 48, "eos_token_id": 0}.items():
        object.__setattr__(data, name, value)
    monkeypatch.setattr(tokenized_data.TokenizedData, "open", classmethod(lambda cls, folder: data))
    return data


def save(model: OLMo, folder: Path) -> Path:
    folder.mkdir()
    OmegaConf.save({"model": model.config.asdict()}, folder / "config.yaml")
    torch.save(model.state_dict(), folder / "model.pt")
    return folder


def export(checkpoint: Path, out: Path) -> None:
    words = ["--checkpoint", str(checkpoint), "--data", "data", "--out", str(out)]
    export_huggingface.main(export_huggingface.parser().parse_args(words))


def test_a_checkpoint_becomes_a_folder_of_the_same_logits(
    make_olmo: MakeOLMo, data: TokenizedData, tmp_path: Path
) -> None:
    model = make_olmo()
    export(save(model, tmp_path / "step3-unsharded"), tmp_path / "exported")
    token_ids_1S = torch.arange(40)[None]
    with torch.inference_mode():
        exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")(token_ids_1S).logits
        torch.testing.assert_close(exported, model(token_ids_1S).logits, atol=1e-5, rtol=0)
    (tmp_path / "as_usual").touch()
    usual = (tmp_path / "as_usual").stat().st_mode
    assert {file.stat().st_mode for file in (tmp_path / "exported").iterdir()} == {usual}


def test_another_tokenizer_and_another_norm_leave_nothing_behind(
    make_olmo: MakeOLMo, data: TokenizedData, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="trained with another tokenizer .* 40 tokens and not 48"):
        export(save(make_olmo(vocab_size=40), tmp_path / "other"), tmp_path / "out")
    with pytest.raises(InputError, match="model.layer_norm_type is rms"):
        export(save(make_olmo(layer_norm_type="rms"), tmp_path / "rms"), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "other", "rms"}


def test_an_export_is_told_apart_from_its_run_and_readable(
    make_olmo: MakeOLMo, data: TokenizedData, tmp_path: Path
) -> None:
    run = save(make_olmo(), tmp_path / "long")
    with pytest.raises(InputError, match="has the name of the model itself.* such as .*exported/long-hf"):
        export(run, tmp_path / "exported" / "long")
    export(run, tmp_path / "exported" / "long-hf")
    (tmp_path / "exported" / "other").touch()
    usual = (tmp_path / "exported" / "other").stat().st_mode
    assert {path.stat().st_mode for path in (tmp_path / "exported" / "long-hf").iterdir()} == {usual}
    (tmp_path / "exported" / "other").unlink()
    assert [path.name for path in (tmp_path / "exported").iterdir()] == ["long-hf"]
    assert [find_model(str(path)).name for path in (run, tmp_path / "exported" / "long-hf")] == [
        "long", "long-hf"
    ]  # fmt: skip


def test_weights_that_are_no_numbers_are_not_exported(
    make_olmo: MakeOLMo, data: TokenizedData, tmp_path: Path
) -> None:
    model = make_olmo()
    with torch.no_grad():
        model.transformer.wte.weight[3, 2] = float("nan")
    with pytest.raises(InputError, match="the weights transformer.wte.weight hold values that are no finite"):
        export(save(model, tmp_path / "run"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_and_a_file_in_the_way_are_told(
    make_olmo: MakeOLMo, data: TokenizedData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = save(make_olmo(), tmp_path / "run")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            export(run, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (tmp_path / "file").touch()
    for in_the_way in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(SystemExit, match="2"):
            export(run, in_the_way)
    assert capsys.readouterr().err.count("where a folder is wanted") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "run", "file"}
