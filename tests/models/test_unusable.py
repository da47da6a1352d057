"""A checkpoint whose weights are not those of its configuration."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from measured_documents import write_checkpoint
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.models.load import find_checkpoint, load_olmo

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"n_layers": 1}, "no place in it for .* such as transformer.blocks.1"),
        ({"n_layers": 3}, "lacks .* such as transformer.blocks.2"),
        ({"mlp_ratio": 4}, r"not the weights of its config.yaml: .*size mismatch for transformer"),
        ({"weight_tying": False}, "lacks 1, such as transformer.ff_out.weight"),
    ],
)  # fmt: skip
def test_the_model_measured_is_the_checkpoint_s(
    fields: dict[str, object], sentence: str, tmp_path: Path, make_olmo: Callable[..., OLMo]
) -> None:
    folder = find_checkpoint(write_checkpoint(tmp_path, make_olmo()))
    weights = (folder / "model.pt").read_bytes()
    write_checkpoint(tmp_path, make_olmo(**fields))
    (folder / "model.pt").write_bytes(weights)
    with pytest.raises(InputError, match=sentence):
        load_olmo(folder, CPU)
