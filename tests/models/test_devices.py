"""GPUs that are of no use, lack something, or are too small: a sentence each; memory that serves again."""

from pathlib import Path

import pytest
import torch

from pipeline.cli import InputError
from pipeline.measuring.contexts import Batching
from pipeline.measuring.stage import dtype_of_results
from pipeline.models import devices
from pipeline.training.speed import faster_dtype, mixed_precision_of

CUDA = torch.device("cuda", 0)
GIB = 1 << 30


class _Properties:
    total_memory = 8 * GIB


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A GPU of 8 GiB, as far as it is asked about; 3 are free."""
    answers = {
        "is_available": lambda: True, "device_count": lambda: 1, "get_device_name": lambda _: "Tesla V100",
        "get_device_properties": lambda _: _Properties, "mem_get_info": lambda _: (3 * GIB, 8 * GIB),
        "memory_reserved": lambda _: 0, "memory_allocated": lambda _: 0,
        "is_bf16_supported": lambda including_emulation: including_emulation,
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return monkeypatch


def test_a_gpu_that_cannot_be_used(gpu: pytest.MonkeyPatch) -> None:
    def ones(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("The NVIDIA driver is too old (version 11040). Please update\nSearch for the URL")

    gpu.setattr(torch, "ones", ones)
    for name in ("cuda", None):
        with pytest.raises(InputError, match=r"driver is too old .*; say cpu$"):
            devices.usable_device(name, "say cpu")


@pytest.mark.usefixtures("gpu")
def test_without_bfloat16_float32_is_used_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert dtype_of_results("bfloat16", tmp_path, "stage", "model", CUDA) == "float32"
    assert caplog.messages == ["Tesla V100 has no bfloat16; float32 is used"]
    caplog.clear()
    assert mixed_precision_of("amp_bf16", CUDA) == "no"
    assert "Tesla V100 has no bfloat16; training in float32" in caplog.text
    assert faster_dtype(CUDA) == torch.float32
    for precision in ("amp_bf16", "auto"):
        with pytest.raises(InputError, match="go on with precision=amp_bf16"):
            mixed_precision_of(precision, CUDA, saved="bf16")
    assert dtype_of_results("bfloat16", tmp_path, "stage", "model", torch.device("cpu")) == "bfloat16"


@pytest.mark.usefixtures("gpu")
def test_batches_follow_from_the_whole_memory_of_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    class OnGPU:
        device = CUDA

    assert Batching.for_model(OnGPU()) == Batching(32768, 1.5 * GIB)  # a quarter of 8 is more than is free
    assert "passes are kept within 1.50 GiB and not 2" in caplog.text
