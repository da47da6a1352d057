from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.text.folder import TokenizedData
from pipeline.training.config import Schedule, load_config, num_training_steps

TINY = Path(__file__).parents[2] / "olmo_configs" / "tiny.yaml"


@pytest.mark.parametrize(
    ("max_duration", "num_steps"),
    [(1000, 1000), ("1000", 1000), ("1e3", 1000), ("2e6T", 489), ("4096T", 1), ("4097T", 2), ("2ep", 14)],
)
def test_durations_are_steps_tokens_or_epochs(max_duration: int | str, num_steps: int) -> None:
    assert num_training_steps(max_duration, tokens_per_step=4096, steps_per_epoch=7) == num_steps


@pytest.mark.parametrize("max_duration", ["long", "2e6X", "", 0, "0ep", "infT"])
def test_other_durations_are_refused(max_duration: int | str) -> None:
    with pytest.raises(InputError, match="max_duration"):
        num_training_steps(max_duration, tokens_per_step=4096, steps_per_epoch=7)


def test_warm_up_and_cosine_of_olmo(data: TokenizedData) -> None:
    overrides = [
        "max_duration=20",
        "scheduler.t_warmup=10",
        "scheduler.alpha_f=0.1",
        "optimizer.learning_rate=1",
    ]
    schedule = Schedule(load_config(TINY, overrides, data), steps_per_epoch=1)
    # From a tenth of the rate in equal parts to all of it, half way down the cosine, to alpha_f at the end.
    rates = [schedule.learning_rate(step) for step in (1, 5, 10, 15, 20)]
    assert rates == pytest.approx([0.19, 0.55, 1.0, 0.55, 0.1])
    assert schedule.max_grad_norm(20) == 1.0


def test_a_schedule_in_tokens_is_that_in_steps(data: TokenizedData) -> None:
    overrides = ["max_duration=20", "optimizer.learning_rate=1"]
    steps = Schedule(load_config(TINY, [*overrides, "scheduler.t_warmup=10"], data), steps_per_epoch=1)
    in_tokens = [*overrides, "scheduler.t_warmup=40960", "scheduler.units=tokens"]
    tokens = Schedule(load_config(TINY, in_tokens, data), steps_per_epoch=1)
    assert [tokens.learning_rate(n) for n in range(1, 21)] == [steps.learning_rate(n) for n in range(1, 21)]


def test_warm_up_longer_than_the_run_is_refused(data: TokenizedData) -> None:
    with pytest.raises(InputError, match="scheduler.t_warmup is 100 steps, longer than max_duration '99'"):
        Schedule(load_config(TINY, ["max_duration=99"], data), steps_per_epoch=1)
    assert Schedule(load_config(TINY, ["max_duration=100"], data), steps_per_epoch=1).num_steps == 100
