"""What denormal numbers cost: the loss of a training step with gradients, and without, with and without them.

A denormal number is one nearer to 0 than 1.2e-38 in float32 and bfloat16. A processor may take a hundred
cycles and more for one; training flushes them to 0. Random weights make hardly any, so this starts from a
checkpoint: put it in the place of pipeline/pretrain.py in the command that trained.

    python tests/benchmarks/denormals.py olmo_configs/8m.yaml --data runs/reference/data \\
        --save-folder runs/reference/models/8m-long-seed0 train_context_length=256 seed=0

Both are timed in turn, on one batch and the same weights, and the results, the norm of the gradients and the
loss, must be the same to the last bit. One thread, as the flag is a thread's own. Prints the median seconds,
and their ratio, above 1 where flushing is faster. The run folder is not written to.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from machine import machine

from pipeline.models.devices import keep_freed_memory
from pipeline.pretrain import parser
from pipeline.text.folder import TokenizedData
from pipeline.training.config import Schedule, load_config
from pipeline.training.data import TrainingBatches
from pipeline.training.trainer import Trainer, next_token_loss

NUM_PAIRS = 5


def arguments_of_command_line() -> argparse.Namespace:
    of_pretrain = parser()
    of_pretrain.description = __doc__
    return of_pretrain.parse_args()


def medians(compute: Callable[[], float]) -> dict[str, float]:
    """Median seconds with denormal numbers, and with 0 in their place; their ratio; the result.

    Raises:
        SystemExit: the results are not the same.
    """
    seconds: dict[bool, list[float]] = {True: [], False: []}
    results = set()
    try:
        for pair in range(NUM_PAIRS):
            for is_flushed in (True, False) if pair % 2 else (False, True):
                torch.set_flush_denormal(is_flushed)
                started = time.perf_counter()
                results.add(compute())
                seconds[is_flushed].append(time.perf_counter() - started)
    finally:
        torch.set_flush_denormal(False)
    if len(results) > 1:
        raise SystemExit(f"the results with and without denormal numbers differ: {results}")
    kept, flushed = (statistics.median(seconds[is_flushed]) for is_flushed in (False, True))
    return {
        "seconds_with": kept,
        "seconds_flushed": flushed,
        "ratio": kept / flushed,
        "result": results.pop(),
    }


def main() -> None:
    arguments = arguments_of_command_line()
    keep_freed_memory()
    data = TokenizedData.open(arguments.data)
    config = load_config(arguments.config, arguments.overrides, data)
    config.save_folder = str(arguments.save_folder)
    batches = TrainingBatches.from_config(config, data)
    trainer = Trainer(config, batches, Schedule(config, batches.steps_per_epoch))
    step = max(1, trainer.step)
    token_ids_BS = torch.from_numpy(batches.batch(step)[0])

    def gradients() -> float:
        trainer._optimizer.zero_grad()
        trainer._accumulate_gradients(step)
        return trainer._clip_gradients(step)

    @torch.no_grad()
    def loss() -> float:
        return float(next_token_loss(trainer._olmo(token_ids_BS).logits, token_ids_BS))

    report = {
        "machine": machine(torch.device("cpu")),
        "model": str(trainer.checkpoint),
        "mixed_precision": trainer._accelerator.mixed_precision,
        "tokens_per_step": config.tokens_per_step,
        "loss_and_gradients": medians(gradients),
        "loss_without_gradients": medians(loss),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
