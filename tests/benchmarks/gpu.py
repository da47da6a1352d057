"""What a GPU reaches here: matrix products, the influence engine, training; fractions of its peak, ratios.

- The peak: the best of some square matrix products, in bfloat16 and float32.
- The engine, `leave_each_out` as the stages call it, on random OLMos of the given sizes, beside the
  all-targets loop (leave_one_out.py): numbers first, which must be equal in float32, then whole chunks in
  turn, medians. In float32, of which a GPU does a fifteenth of its bfloat16, up to 1,024 tokens.
- Training: our Trainer beside a plain loop (training.py), without and with torch.compile, which the plain
  loop never has.
A fraction of the peak is useful work over the peak in the same dtype. A case that fails (out of memory, no
compiler) says why, and the others go on. Aims: the engine at 40 % of the bfloat16 peak or more at 1b and
1,024 tokens, training at 45 % at 150m.

on a GPU; under an hour on an H100 by counting, it has not run on one yet:
  python tests/benchmarks/gpu.py --out runs/benchmarks/gpu.json

in seconds on any CPU, to see that it runs:
  python tests/benchmarks/gpu.py --device cpu --toy --out runs/benchmarks/toy.json
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from leave_one_out import AllTargetsLoop, ModelSize, Ours, Problem, Way, rows_of, timed
from matrix_product_peak import DTYPES, Shape, machine, peak_flops, use_threads
from training import VOCABULARY, Case, compare

from pipeline.cli import InputError, is_out_of_memory, positive_int, progress, run_stage, stage_parser
from pipeline.measuring.flags import ContextLengths
from pipeline.models.devices import best_device_type, keep_freed_memory, usable_device

SQUARES: tuple[Shape, ...] = tuple((size, size, size) for size in (2048, 4096, 8192, 16384))
MODELS = {
    "60m": ModelSize(16, 384, 6, 50_280),
    "150m": ModelSize(12, 768, 12, 50_280),
    "300m": ModelSize(24, 1024, 16, 50_280),
    "1b": ModelSize(16, 2048, 16, 50_280),
}
"""Layers, width, heads, vocabulary, as olmo_configs/ has them."""
TOY_MODEL = ModelSize(2, 32, 4, 48, 2, 0.3)
TOY_CONFIG = (
    "model.d_model=16", "model.n_heads=2", "model.n_layers=1", "model.mlp_ratio=2",
    "model.max_sequence_length=32", "scheduler.t_warmup=1", "eval_context_lengths=null",
)  # fmt: skip
FULL = {
    "models": ["150m", "1b"], "long_context_lengths": [512, 1024, 2048, 4096], "short_context_length": 64,
    "targets_per_chunk": 64, "tokens_per_batch": [16384, 32768, 65536], "float32_up_to": 1024,
    "configs": ["20m", "60m", "150m"], "contexts": [64, 512, 2048], "tokens_per_step": 65536, "steps": 10,
    "repeats": 3, "compile_backend": "inductor",
}  # fmt: skip
"""The models of the engine, its batches (a row each) and repeats; trainings, and their timed steps."""
TOY = {
    "models": ["60m"], "long_context_lengths": [24, 32], "short_context_length": 4, "targets_per_chunk": 5,
    "tokens_per_batch": [64], "float32_up_to": 24, "configs": ["60m"], "contexts": [16],
    "tokens_per_step": 64, "steps": 2, "repeats": 2, "compile_backend": "eager",
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The command line."""
    script = stage_parser(__doc__)
    add = script.add_argument
    add("--threads", type=positive_int, help="of a CPU; all cores if not given")
    add("--device", help="cuda or cpu; a GPU where there is one, if not given")
    add("--toy", action="store_true", help="everything tiny")
    add("--out", type=Path, required=True, help="JSON file for every number")
    return script


def main(arguments: argparse.Namespace) -> None:
    """Measure, print, and write what there is after each case: a later one may fail."""
    vars(arguments).update(TOY if arguments.toy else FULL)
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # or training would find a GPU by itself
    device = usable_device(arguments.device or best_device_type())
    keep_freed_memory()
    use_threads(arguments.threads)
    peaks = {dtype: peak_flops(dtype, device, ((64,) * 3,) if arguments.toy else SQUARES) for dtype in DTYPES}
    report: dict[str, Any] = {"machine": machine(device), "settings": vars(arguments), "peaks": peaks}
    print("\n".join(f"matrix products, {name:9}{peak / 1e12:10.3f} TFLOP/s" for name, peak in peaks.items()))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for part, measure in (("engine", engine_rows), ("training", training_rows)):
        report[part] = []
        for row in measure(arguments, device, peaks):
            report[part].append(row)
            print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)
            arguments.out.write_text(json.dumps(report, indent=1, default=str) + "\n")


def engine_rows(
    arguments: argparse.Namespace, device: torch.device, peaks: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """A row a model, length, dtype, and way or size of batch."""
    cases = [(name, length) for name in arguments.models for length in arguments.long_context_lengths]
    for name, length in progress(cases, "engine", "case"):
        lengths = ContextLengths(arguments.short_context_length, length, arguments.targets_per_chunk)
        problem = Problem(TOY_MODEL if arguments.toy else MODELS[name], lengths, device=device)
        for dtype in DTYPES:
            if dtype == "float32" and length > arguments.float32_up_to:
                continue
            told = {"what": name, "long_context_length": length, "dtype": dtype}
            try:
                ways: dict[str, Way] = {f"all-targets loop, {dtype}": AllTargetsLoop(problem, dtype)}
                for size in arguments.tokens_per_batch:
                    ours = Ours(replace(problem, tokens_per_batch=size), dtype)
                    ways[f"ours, {size} a batch, {dtype}"] = ours
                seconds = timed(ways, arguments.repeats, tolerance=0.001)
                for row in rows_of(ways, seconds, peaks):
                    yield {**told, **row}
            except (InputError, RuntimeError, MemoryError) as error:
                yield {**told, "failed": reason_of(error)}


def training_rows(
    arguments: argparse.Namespace, device: torch.device, peaks: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """A row a configuration, context length and whether ours is compiled."""
    precision = "amp_bf16" if device.type == "cuda" or arguments.toy else "auto"
    cases = [
        (c, length, on) for c in arguments.configs for length in arguments.contexts for on in (False, True)
    ]
    for config, context, is_compiled in progress(cases, "training", "case"):
        overrides = list(TOY_CONFIG) if arguments.toy else []
        overrides += [f"compile.backend={arguments.compile_backend}"] if is_compiled else []
        told = {"what": config, "train_context_length": context, "is_compiled": is_compiled}
        try:
            with tempfile.TemporaryDirectory() as folder:
                compared = compare(
                    Case(config, context, precision), VOCABULARY, arguments.tokens_per_step,
                    arguments.steps, overrides, Path(folder), peaks,
                )  # fmt: skip
            yield {**told, **asdict(compared)}
        except (InputError, RuntimeError, MemoryError) as error:
            yield {**told, "failed": reason_of(error)}


def reason_of(error: Exception) -> str:
    """Why a case failed, in a line."""
    return "out of memory" if is_out_of_memory(error) else str(error).splitlines()[0][:200]


if __name__ == "__main__":
    run_stage(parser(), main)
