import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from pipeline.text.folder import TokenizedData
from pipeline.training import speed as throughput
from pipeline.training.config import load_config
from pipeline.training.speed import Throughput, flops_per_token, measured_peak_flops

TINY = Path(__file__).parents[2] / "olmo_configs" / "tiny.yaml"
SHAPE = ("model.d_model=16", "model.n_heads=2", "model.n_layers=1")
# Attention has 4 * 16 * 16 weights, SwiGLU 4 * 16 * 16 and 2 * 16 * 16, the vocabulary 128 rows of 16.
LAYER, ROWS = 10 * 16 * 16, 128 * 16


@pytest.mark.parametrize("tied", [True, False])
def test_flops_of_a_token_by_hand(tied: bool, data: TokenizedData) -> None:
    config = load_config(TINY, [*SHAPE, f"model.weight_tying={tied}"], data)
    # The vocabulary projection multiplies, tied or not; the table that is only looked up does not.
    assert flops_per_token(config.model, 8) == 6 * (LAYER + ROWS) + 12 * 1 * 16 * 8


def test_utilization_is_a_fraction_of_all_devices(data: TokenizedData) -> None:
    config = load_config(TINY, [*SHAPE, "peak_flops=1e6"], data)
    of_two = Throughput(config, 2, torch.device("cpu"), torch.float32)
    assert of_two.utilization(10.0) == pytest.approx(10 * (6 * (LAYER + ROWS) + 12 * 16 * 256) / 2e6)


def test_the_peak_is_of_the_fastest_product_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    of_size = {256: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 512: [0.01, 3.0, 2.0, 4.0, 5.0, 6.0]}
    seconds = iter([*(second / 10 for second in of_size[256]), *of_size[512]])
    monkeypatch.setattr(throughput, "_seconds_of_product", lambda first, second: next(seconds))
    # At 256 the fastest takes 0.02 s, at 512 2 s: so long that 1024, for which no time is left, is not tried.
    assert measured_peak_flops(torch.device("cpu"), torch.float32) == 2 * 256**3 / 0.02


def test_the_peak_of_this_machine_is_a_speed_and_known_at_once() -> None:
    for dtype in (torch.float32, torch.bfloat16):  # emulated, by products that are small enough
        started = time.perf_counter()
        assert 1e6 < measured_peak_flops(torch.device("cpu"), dtype) < 1e15
        assert time.perf_counter() - started < 10


def test_shapes_are_known_without_the_compiler_that_drawing_weights_would_import() -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from pipeline.training.speed import estimate\n"
        "from pipeline.training.config import AssumedData, load_config\n"
        f"estimate(load_config(Path({str(TINY)!r}), [], AssumedData(300)))\n"
        "sys.exit('torch._dynamo.convert_frame' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=TINY.parents[1])
