"""What goes on around a training."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pipeline.training.loop import train
from pipeline.training.trainer import Trainer


@pytest.fixture
def not_flushed() -> Iterator[None]:
    """The flag is the thread's own, for the rest of its life."""
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush them")
@pytest.mark.usefixtures("not_flushed")
def test_a_training_flushes_denormal_numbers_and_ends_with_the_same_weights(
    tmp_path: Path, make_trainer: Callable[..., Trainer]
) -> None:
    make_trainer(tmp_path / "alone").run()
    trainer = make_trainer(tmp_path / "run")
    denormal = torch.tensor(torch.finfo(torch.float32).smallest_normal) / 2
    seen = []

    def make() -> Trainer:
        seen.append(float(denormal * 1))
        return trainer

    train(tmp_path / "run", trainer._config, "", make)
    assert float(denormal * 1) == 0 and seen == [0.0]
    weights = [torch.load(tmp_path / name / "step6-unsharded" / "model.pt") for name in ("alone", "run")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
