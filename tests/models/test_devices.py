"""GPUs that are of no use, lack something, or are shared: a sentence each, in torch's own words."""

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from measured_documents import write_checkpoint
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.measuring.contexts import Batching
from pipeline.measuring.stage import dtype_of_results
from pipeline.models import devices
from pipeline.models.olmo import find_checkpoint, load_olmo
from pipeline.training.speed import faster_dtype, mixed_precision_of

CUDA = torch.device("cuda", 0)
GIB = 1 << 30
OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by"
    " downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
    " Alternatively, go to: https://pytorch.org to install a PyTorch version that has been compiled with your"
    " version of the CUDA driver."
)


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
    devices.best_device_type.cache_clear()
    devices._say.cache_clear()
    yield monkeypatch
    devices.best_device_type.cache_clear()
    devices._say.cache_clear()


def _fails(message: str) -> Callable[..., torch.Tensor]:
    def ones(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError(message)

    return ones


@pytest.mark.parametrize("message", [OLD_DRIVER, f"CUDA initialization: {OLD_DRIVER}"])
def test_torch_says_it_in_one_sentence(message: str) -> None:
    expected = "The NVIDIA driver on your system is too old (found version 11040)"
    assert devices.shortened(RuntimeError(message)) == expected


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (OLD_DRIVER, "too old (found version 11040)"),
        (
            "CUDA error: no kernel image is available for execution on the device\nSearch for\nCompile with",
            "CUDA error: no kernel image is available for execution on the device",
        ),
        (
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors might be",
            "CUDA-capable device(s) is/are busy or unavailable",
        ),
    ],
    ids=["old driver", "old GPU", "taken by another process"],
)
@pytest.mark.parametrize("asked", ["cuda", None])
def test_a_gpu_that_cannot_be_used(
    message: str, told: str, asked: str | None, gpu: pytest.MonkeyPatch
) -> None:
    gpu.setattr(torch, "ones", _fails(message))
    with pytest.raises(InputError, match=re.escape(told)) as error:
        devices.usable_device(asked, "say cpu")
    what = "--device cuda" if asked else "the GPU"
    assert re.fullmatch(rf"{what} cannot be used here \(.*\); say cpu", str(error.value))
    assert "http" not in str(error.value) and "\n" not in str(error.value)


def test_where_none_is_asked_for_the_cpu_is_taken_and_a_useless_driver_told(
    gpu: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def warn() -> bool:
        import warnings

        warnings.warn(f"CUDA initialization: {OLD_DRIVER} (Triggered internally at)", stacklevel=1)
        return False

    gpu.setattr(torch.cuda, "is_available", warn)
    assert [devices.usable_device(None) for _ in range(2)] == [torch.device("cpu")] * 2
    assert caplog.messages == [
        "a GPU is here that cannot be used (The NVIDIA driver on your system is too old (found version"
        " 11040)); computing on the CPU"
    ]
    caplog.clear()
    (tmp_path / "version").touch()
    gpu.setattr(devices, "_DRIVER", tmp_path / "version")
    gpu.setattr(torch.cuda, "is_available", lambda: False)
    gpu.setattr(torch.version, "cuda", None)
    devices.best_device_type.cache_clear()
    assert devices.best_device_type() == "cpu"
    assert f"(torch {torch.__version__} is built without CUDA)" in caplog.text


def test_more_processes_than_gpus(gpu: pytest.MonkeyPatch) -> None:
    gpu.setenv("LOCAL_RANK", "1")
    with pytest.raises(InputError, match=r"process 1, .* has no GPU .* 1 can .* --nproc-per-node 1\)"):
        devices.usable_device("cuda")
    gpu.setenv("LOCAL_RANK", "0")
    assert devices.device_of_this_process("cuda") == "cuda:0"


def test_another_process_on_the_gpu_is_told_once(
    gpu: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pipeline"):
        devices._say(CUDA)
        devices._say(CUDA)
    first, second = caplog.messages
    assert first == (
        "computing on cuda:0: Tesla V100, 8.0 GiB (other processes hold 5.00); products of float32 are not"
        " rounded to TF32"
    )
    assert second.startswith("other processes hold 5.00 GiB of cuda:0: two on one GPU are slower")
    caplog.clear()
    devices._say.cache_clear()
    gpu.setattr(torch.cuda, "mem_get_info", lambda _: (int(7.5 * GIB), 8 * GIB))
    with caplog.at_level(logging.INFO, "pipeline"):
        devices._say(CUDA)
    assert len(caplog.messages) == 1 and "other processes" not in caplog.text


@pytest.mark.usefixtures("gpu")
def test_a_model_larger_than_the_gpu_is_refused_with_both_numbers(
    make_olmo: Callable[..., OLMo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError) as error:
        devices.refuse_beyond_memory(14 * GIB, CUDA, "the model of x", "take another")
    assert str(error.value) == (
        "the model of x takes 14.00 GiB, and 3.00 of 8.00 are free on cuda:0 (other processes hold 5.00);"
        " take another"
    )
    devices.refuse_beyond_memory(2 * GIB, CUDA, "the model of x", "take another")
    checkpoint = find_checkpoint(write_checkpoint(tmp_path / "run", make_olmo()))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 8 * GIB))
    with pytest.raises(InputError, match=r"the model of .*/step\d+-unsharded takes 0\.00 GiB, and 0\.00 of"):
        load_olmo(checkpoint, CUDA)


@pytest.mark.usefixtures("gpu")
def test_without_bfloat16_float32_is_used_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert dtype_of_results("bfloat16", tmp_path, "stage", "model", CUDA) == "float32"
    assert caplog.messages == ["Tesla V100 has no bfloat16; float32 is used"]
    caplog.clear()
    assert mixed_precision_of("amp_bf16", CUDA) == "no"
    assert "Tesla V100 has no bfloat16; training in float32" in caplog.text
    assert faster_dtype(CUDA) == torch.float32
    for precision in ("amp_bf16", "auto"):
        with pytest.raises(InputError, match=r"trained in bfloat16, which Tesla V100 has not; go on with it"):
            mixed_precision_of(precision, CUDA, saved="bf16")
    assert dtype_of_results("bfloat16", tmp_path, "stage", "model", torch.device("cpu")) == "bfloat16"


@pytest.mark.usefixtures("gpu")
def test_batches_follow_from_the_whole_memory_of_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    class OnGPU:
        device = CUDA

    assert Batching.for_model(OnGPU()) == Batching(32768, 1.5 * GIB)  # a quarter of 8 is more than is free
    assert "batches are kept within 1.50 GiB and not 2, which may move the last bits" in caplog.text
