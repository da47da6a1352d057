"""Compare the speed of training with a plain PyTorch loop, in tokens per second.

For every configuration, context length and precision, our Trainer and a plain loop (stock OLMo at its own
positions, torch's fused AdamW, autocast, cross-entropy, clipping) train the same model from the same weights
on the same batches. First the losses of three steps must agree; then steps of the two are timed in turn, so
that whatever else the machine does falls on both. The program prints the median of the steps and the ratio
of medians, which is 1 or more if ours is no slower.

    python tests/benchmarks/training.py              20m, 60m at 64 and 512 tokens, float32 and bfloat16
    python tests/benchmarks/training.py --quick      20m at 64 tokens, a few steps
    python tests/benchmarks/training.py --configs 150m --contexts 64 512 2048 --precisions amp_bf16 \\
        --tokens-per-step 131072 --set compile.mode=default             on a GPU
    python tests/benchmarks/training.py --configs 2m --contexts 64 256 --vocabulary-size 4096
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import torch
from accelerate.state import AcceleratorState
from olmo.model import OLMo
from olmo.optim import get_param_groups
from torch.utils.benchmark import timer

from sparsity_length.cli import Stage, positive_int
from sparsity_length.models.devices import keep_freed_memory
from sparsity_length.text.folder import TokenizedData
from sparsity_length.training.config import PretrainConfig, load_config
from sparsity_length.training.data import TrainingBatches
from sparsity_length.training.trainer import Trainer, mixed_precision_of

CHECKED_STEPS = 3
LOSS_TOLERANCE = {"no": 1e-5, "bf16": 2e-3}  # relative; other kernels round differently


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--configs", nargs="+", default=["20m", "60m"], help="names in olmo_configs/")
    add("--contexts", type=positive_int, nargs="+", default=[64, 512], help="train_context_length")
    add("--precisions", nargs="+", default=["fp32", "amp_bf16"], help="of both loops")
    add("--vocabulary-size", type=positive_int, default=50_280, help="of the tokens, which are random")
    add("--tokens-per-step", type=positive_int, default=4096, help="one micro-batch")
    add("--steps", type=positive_int, default=10, help="timed steps of each loop")
    add("--set", nargs="*", default=[], metavar="field=value", help="overrides for ours only")
    add("--quick", action="store_true", help="20m at 64 tokens, 1,024 tokens per step, 3 steps")


def data_of(folder: Path, vocabulary_size: int, tokens: int) -> TokenizedData:
    """Random tokens of 64 steps: what is timed does not depend on them. What models have learnt does."""
    path = folder / "part-00000.npy"
    np.random.default_rng(0).integers(0, vocabulary_size, 64 * tokens).astype(np.uint16).tofile(path)
    return TokenizedData(folder, [path], np.dtype(np.uint16), vocabulary_size, 0, "0", "1")


def plain_loop(
    config: PretrainConfig, batches: TrainingBatches, device: torch.device
) -> Callable[[int], float]:
    """A step of the loop that a tutorial would write; returns its loss."""
    torch.manual_seed(config.seed)
    model = OLMo(config.model).train().to(device)
    settings = config.optimizer
    optimizer = torch.optim.AdamW(
        get_param_groups(config, model),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
    )
    autocast = torch.autocast(
        device.type, torch.bfloat16, enabled=mixed_precision_of(config.precision, device) == "bf16"
    )

    def step(number: int) -> float:
        token_ids_BS = torch.from_numpy(batches.batch(number)[0]).to(device)
        with autocast:
            logits_BSV = model(token_ids_BS).logits
        logits = logits_BSV[:, :-1].float().flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, token_ids_BS[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = config.rates(number)[0]
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def compare(case: tuple[str, int, str], arguments: argparse.Namespace, folder: Path) -> str:
    """Check, then time in turn: a line of the report; SystemExit where the losses differ.

    A case is a configuration, a context length, and a precision.
    The plain loop has the same model without overrides, so none of torch.compile. Run and tokens are
    written to `folder`.
    """
    AcceleratorState._reset_state(reset_partial_state=True)  # one process, many precisions
    name, context, precision = case
    tokens = arguments.tokens_per_step
    overrides = [
        f"train_context_length={context}",
        f"precision={precision}",
        "max_duration=100000",
        f"global_train_batch_tokens={tokens}",
        f"device_train_microbatch_tokens={tokens}",
        "eval_context_lengths=null",
        *arguments.set,
    ]
    data = data_of(folder, arguments.vocabulary_size, tokens)
    config = load_config(Path(__file__).resolve().parents[2] / f"olmo_configs/{name}.yaml", overrides, data)
    config.save_folder = str(folder / "run")
    trainer = Trainer(config, data)
    mixed_precision = trainer._accelerator.mixed_precision
    plain_step = plain_loop(config, TrainingBatches(config, data), trainer._accelerator.device)

    def own_step(number: int) -> float:
        return trainer._train_step(number)[0]["loss_nats"]

    loops = {"ours": own_step, "plain": plain_step}
    for number in range(1, CHECKED_STEPS + 1):
        ours, plain = (loop(number) for loop in loops.values())
        if abs(ours - plain) > LOSS_TOLERANCE[mixed_precision] * plain:
            raise SystemExit(f"{case}: step {number}: our loss is {ours}, the plain loop's {plain}")
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(CHECKED_STEPS + 1, CHECKED_STEPS + 1 + arguments.steps):
        for name in loops if number % 2 else reversed(loops):  # the one that begins changes
            started = timer()  # to the last kernel
            loops[name](number)
            seconds[name].append(timer() - started)
    ours, plain = (tokens / statistics.median(of_loop) for of_loop in seconds.values())
    dtype = "bfloat16" if mixed_precision == "bf16" else "float32"
    return f"{case[0]:>5} {context:>7} {dtype:>9} {ours:>11,.0f} {plain:>11,.0f} {ours / plain:>6.3f}"


def main(arguments: argparse.Namespace) -> None:
    if arguments.quick:
        vars(arguments).update({"configs": ["20m"], "contexts": [64], "tokens_per_step": 1024, "steps": 3})
    keep_freed_memory()  # of the process, so of the plain loop too
    print(f"{arguments.tokens_per_step:,} tokens per step; median of {arguments.steps} steps")
    print("config context     dtype  ours tok/s plain tok/s  ratio")
    for case in product(arguments.configs, arguments.contexts, arguments.precisions):
        with tempfile.TemporaryDirectory() as folder:
            print(compare(case, arguments, Path(folder)), flush=True)


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
