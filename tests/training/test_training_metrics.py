import json
from pathlib import Path

from pipeline.training.metrics import MetricsLog


def line(step: int) -> dict[str, float]:
    return {"step": step, "loss_nats": 1.5, "tokens_per_second": 10.0}


def steps_in(path: Path) -> list[int]:
    return [json.loads(text)["step"] for text in path.read_text().splitlines()]


def test_lines_after_the_resumed_step_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, step=0, num_steps=4, flush_interval=1) as log:
        for step in (1, 2, 3):
            log.write(line(step))
    with path.open("a") as file:
        file.write('{"step": 4, "loss_')  # torn by a kill
    with MetricsLog(path, step=2, num_steps=4, flush_interval=1) as log:
        assert steps_in(path) == [1, 2]
        log.write(line(3))
    assert steps_in(path) == [1, 2, 3]


def test_lines_reach_the_file_every_flush_interval(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, step=0, num_steps=4, flush_interval=2) as log:
        log.write(line(1))
        assert steps_in(path) == []
        log.write(line(2))
        assert steps_in(path) == [1, 2]
