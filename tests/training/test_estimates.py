import re
import shlex
from pathlib import Path

import pytest
import torch
from olmo.model import OLMo

from pipeline.study import main, parser
from pipeline.training.config import AssumedData, load_config
from pipeline.training.speed import Device, estimate, layer_bytes_per_token

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "olmo_configs").glob("*.yaml"))
SIZES = [path for path in CONFIGS if path.stem not in ("tiny", "demo", "small", "2m", "8m")]


def header(path: Path) -> str:
    """The comment at the head of a file, as one line."""
    lines = path.read_text().split("seed:")[0].splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_header_says_what_its_command_prints(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    command = re.search(
        r"as estimated by: python pipeline/study.py (\S+\.yaml --dry-run(?: --\S+ [\d.e]+)*)", header(path)
    )
    assert command is not None
    words = shlex.split(command[1])
    assert words[0] == f"olmo_configs/{path.name}"
    main(parser().parse_args(words))
    assert capsys.readouterr().out.split("; at ")[0] in header(path)


@pytest.mark.parametrize("path", SIZES, ids=lambda path: path.stem)
def test_every_size_trains_as_long_as_is_optimal_for_it(path: Path) -> None:
    run = estimate(load_config(path, [], AssumedData(50_280)))
    assert run.num_tokens == pytest.approx(20 * run.num_parameters, rel=0.01)
    named = float(path.stem[:-1]) * {"m": 1e6, "b": 1e9}[path.stem[-1]]
    assert run.num_parameters == pytest.approx(named, rel=0.2)
    assert run.memory_bytes < 75e9  # of the 80 GB of an H100


def test_an_estimate_by_hand() -> None:
    overrides = ["model.d_model=16", "model.n_heads=2", "model.n_layers=1", "max_duration=10",
                 "model.max_sequence_length=32", "global_train_batch_tokens=64",
                 "device_train_microbatch_tokens=64"]  # fmt: skip
    tiny = load_config(
        ROOT / "olmo_configs" / "tiny.yaml", [*overrides, "eval_context_lengths=null"], AssumedData(128)
    )
    run = estimate(tiny, Device("slow", peak_flops=1e6, utilization=0.5))
    num_parameters = 128 * 16 + 10 * 16 * 16
    assert (run.num_parameters, run.num_tokens, run.num_steps) == (num_parameters, 640, 10)
    assert run.chinchilla_tokens == 20 * num_parameters
    assert run.seconds == 640 * (6 * num_parameters + 12 * 16 * 32) / 0.5e6
    assert run.memory_bytes == 18 * num_parameters + 64 * (26 * 16 + 4 * 64 + 10 * 128)


def test_what_autograd_keeps_of_a_layer_is_what_the_formula_says() -> None:
    """Counted by autograd itself: bytes of distinct saved tensors, of two layers more and no weights."""
    kept = {}
    for num_layers in (1, 3):
        config = load_config(
            ROOT / "olmo_configs" / "tiny.yaml",
            [f"model.n_layers={num_layers}", "model.mlp_ratio=8"],
            AssumedData(128),
        )
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
