import pytest

from pipeline.training.data import Prefetch


def test_each_step_gets_its_own_batch_made_once_and_one_step_ahead() -> None:
    made: list[int] = []

    def make_batch(step: int) -> str:
        made.append(step)
        return f"batch {step}"

    prefetch = Prefetch(make_batch)
    assert [prefetch(step) for step in (1, 2, 3)] == ["batch 1", "batch 2", "batch 3"]
    assert prefetch(7) == "batch 7"  # elsewhere, as after going on from a checkpoint
    prefetch._thread.shutdown()
    assert made == [1, 2, 3, 4, 7, 8]


def test_a_failure_is_raised_where_the_batch_is_asked_for() -> None:
    prefetch = Prefetch(lambda step: 1 // (3 - step))
    assert prefetch(1) == 0
    assert prefetch(2) == 1
    with pytest.raises(ZeroDivisionError):
        prefetch(3)
