"""FLOPs, utilization and estimates: by hand, by autograd's count, and as the configurations' headers say."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from olmo.model import OLMo

from pipeline.study import main, parser
from pipeline.training import speed
from pipeline.training.config import AssumedData, load_config
from pipeline.training.speed import (
    estimate,
    flops_per_token,
    layer_bytes_per_token,
    measured_peak_flops,
    utilization_of_a_token,
)

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "olmo_configs").glob("*.yaml"))
TINY = ROOT / "olmo_configs" / "tiny.yaml"
SHAPE = ("model.d_model=16", "model.n_heads=2", "model.n_layers=1")
# Attention has 4 * 16 * 16 weights, SwiGLU 4 * 16 * 16 and 2 * 16 * 16, the vocabulary 128 rows of 16.
LAYER, ROWS = 10 * 16 * 16, 128 * 16
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


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_header_says_what_its_command_prints_and_every_size_trains_as_long_as_is_optimal(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    lines = path.read_text().split("seed:")[0].splitlines()
    header = " ".join(line.removeprefix("#").strip() for line in lines)
    command = re.search(
        r"as estimated by: python pipeline/study.py (\S+\.yaml --dry-run(?: --\S+ [\d.e]+)*)", header
    )
    assert command is not None
    words = shlex.split(command[1])
    assert words[0] == f"olmo_configs/{path.name}"
    main(parser().parse_args(words))
    assert capsys.readouterr().out.split("; at ")[0] in header
    if path.stem not in ("tiny", "demo", "small", "2m", "8m", "150m_c4_guess"):
        run = estimate(load_config(path, [], AssumedData(50_280)))
        assert run.num_tokens == pytest.approx(20 * run.num_parameters, rel=0.01)
        named = float(path.stem[:-1]) * {"m": 1e6, "b": 1e9}[path.stem[-1]]
        assert run.num_parameters == pytest.approx(named, rel=0.2)
        assert run.memory_bytes < 75e9  # of the 80 GB of an H100


def test_an_estimate_by_hand() -> None:
    overrides = ["max_duration=10", "model.max_sequence_length=32", "global_train_batch_tokens=64",
                 "device_train_microbatch_tokens=64", "eval_context_lengths=null"]  # fmt: skip
    tiny = load_config(TINY, [*SHAPE, *overrides], AssumedData(128))
    run = estimate(tiny, 0.5e6)
    num_parameters = ROWS + LAYER
    assert (run.num_parameters, run.num_tokens, run.num_steps) == (num_parameters, 640, 10)
    assert run.seconds == 640 * (6 * num_parameters + 12 * 16 * 32) / 0.5e6
    assert run.memory_bytes == 18 * num_parameters + 64 * (26 * 16 + 4 * 64 + 10 * 128)


def test_what_autograd_keeps_of_a_layer_is_what_the_formula_says() -> None:
    """Counted by autograd itself: bytes of distinct saved tensors, of two layers more and no weights."""
    kept = {}
    for num_layers in (1, 3):
        overrides = [f"model.n_layers={num_layers}", "model.mlp_ratio=8"]
        config = load_config(TINY, overrides, AssumedData(128))
        model, storages = OLMo(config.model).train(), {}
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

        def note(
            tensor: torch.Tensor, storages: dict[int, int] = storages, weights: set[int] = weights
        ) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights and tensor.numel() % 128 == 0:
                storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with (
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16),
        ):
            logits = model(torch.zeros(4, 256, dtype=torch.int64)).logits
        kept[num_layers] = sum(storages.values()), layer_bytes_per_token(config) * 4 * 256
        del logits
    measured, formula = (kept[3][i] - kept[1][i] for i in (0, 1))
    assert formula == pytest.approx(measured, rel=0.2)
