from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from olmo.model import OLMo
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM

from pipeline import export_huggingface
from pipeline.errors import InputError
from pipeline.text import tokenized_data
from pipeline.text.tokenized_data import TokenizedData

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


def test_another_tokenizer_and_another_norm_leave_nothing_behind(
    make_olmo: MakeOLMo, data: TokenizedData, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="trained with another tokenizer .* 40 tokens and not 48"):
        export(save(make_olmo(vocab_size=40), tmp_path / "other"), tmp_path / "out")
    with pytest.raises(InputError, match="model.layer_norm_type is rms"):
        export(save(make_olmo(layer_norm_type="rms"), tmp_path / "rms"), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "other", "rms"}
