"""FLOPs and utilization, by hand."""

from pathlib import Path

import pytest
import torch

from pipeline.training import speed
from pipeline.training.config import AssumedData, load_config
from pipeline.training.speed import (
    flops_per_token,
    measured_peak_flops,
    utilization_of_a_token,
)

ROOT = Path(__file__).parents[2]
TINY = ROOT / "olmo_configs" / "tiny.yaml"
SHAPE = ("model.d_model=16", "model.n_heads=2", "model.n_layers=1")
# Attention has 4 * 16 * 16 weights, SwiGLU 4 * 16 * 16 and 2 * 16 * 16, the vocabulary 128 rows of 16.
LAYER = 10 * 16 * 16
ROWS = 128 * 16
CPU = torch.device("cpu")


def test_flops_of_a_token_and_utilization_of_all_devices_by_hand() -> None:
    for tied in (True, False):
        config = load_config(TINY, [*SHAPE, f"model.weight_tying={tied}", "peak_flops=1e6"], AssumedData(128))
        # The vocabulary projection multiplies, tied or not; the table that is only looked up does not.
        assert flops_per_token(config.model, 8) == 6 * (LAYER + ROWS) + 12 * 1 * 16 * 8
        of_two = utilization_of_a_token(config, 2, CPU, torch.float32)
        assert of_two == pytest.approx((6 * (LAYER + ROWS) + 12 * 16 * 256) / 2e6)


def test_the_peak_is_of_the_fastest_product_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1e6 < measured_peak_flops(CPU, torch.float32) < 1e15
    of_size = {256: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 512: [0.01, 3.0, 2.0, 4.0, 5.0, 6.0]}
    seconds = iter([*(second / 10 for second in of_size[256]), *of_size[512]])
    monkeypatch.setattr(speed, "_seconds_of_product", lambda first, second: next(seconds))
    # At 256 the fastest takes 0.02 s, at 512 2 s: so long that 1024, for which no time is left, is not tried.
    assert measured_peak_flops(CPU, torch.float32) == 2 * 256**3 / 0.02
