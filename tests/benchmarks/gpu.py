"""What a GPU reaches here: matrix products, the influence engine, training; fractions of its peak, ratios.

- The peak: the best of some square matrix products, in bfloat16, float32 and TF32, which nothing else uses.
- The engine, `leave_each_out` as the stages call it, on random OLMos of the given sizes, beside the
  all-targets loop (variants.py): numbers first, which must be equal in float32, then whole chunks in turn,
  medians. In float32, of which a GPU does a fifteenth of its bfloat16, up to --float32-up-to tokens only.
- Training: our Trainer beside a plain loop (training.py), without and with torch.compile, which the plain
  loop never has.
A fraction of the peak is useful work (accounting.py; of training, pipeline/training/speed.py) over the
peak in the same dtype. A case that fails (out of memory, no compiler) says why, and the others go on.
Aims: the engine at 40 % of the bfloat16 peak or more from 100 M parameters on, training at 45 % at 150m.

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
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from accounting import num_pairs, predicted_gain
from equality import Measured, refuse_unequal
from machine import machine, use_threads
from matrix_product_peak import Shape, matrix_product_peak
from problem import Problem, RandomModel
from training import VOCABULARY, Case, compare
from worker import Answers, VariantName

from pipeline.cli import InputError, is_out_of_memory, positive_int, progress, run_stage, stage_parser
from pipeline.measuring.flags import ContextLengths
from pipeline.models.devices import best_device_type, keep_freed_memory, usable_device

SQUARES: tuple[Shape, ...] = tuple((size, size, size) for size in (2048, 4096, 8192, 16384))
MODELS = {
    "60m": RandomModel(16, 384, 6, 50_280, 8, 0.06, 0),
    "150m": RandomModel(12, 768, 12, 50_280, 8, 0.06, 0),
    "300m": RandomModel(24, 1024, 16, 50_280, 8, 0.06, 0),
}
"""Layers, width, heads, vocabulary, as olmo_configs/ has them."""
TOY_MODELS = {"60m": RandomModel(2, 32, 4, 48, 2, 0.3, 0)}
TOY_CONFIG = (
    "model.d_model=16", "model.n_heads=2", "model.n_layers=1", "model.mlp_ratio=2",
    "model.max_sequence_length=32", "scheduler.t_warmup=1", "eval_context_lengths=null",
)  # fmt: skip
TOY = {
    "models": ["60m"], "long_context_lengths": [24, 32], "short_context_length": 4, "targets_per_chunk": 5,
    "tokens_per_batch": [64], "configs": ["60m"], "contexts": [16], "tokens_per_step": 64, "steps": 2,
    "repeats": 2, "float32_up_to": 24, "compile_backend": "eager",
}  # fmt: skip
LOOP = "all-targets loop"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    script = stage_parser(__doc__)
    add = script.add_argument
    add(
        "--models",
        nargs="*",
        choices=MODELS,
        default=["150m", "300m"],
        help="sizes for the engine; none: left out",
    )
    add(
        "--long-context-lengths",
        nargs="+",
        type=positive_int,
        default=[512, 1024, 2048, 4096],
        help="ℓ, in tokens",
    )
    add("--short-context-length", type=positive_int, default=64, help="s, in tokens")
    add("--targets-per-chunk", type=positive_int, default=64, help="m, targets at the end of the chunk")
    add(
        "--tokens-per-batch", nargs="+", type=positive_int, default=[16384, 32768, 65536],
        help="of the engine, a row each: which is fastest here",
    )  # fmt: skip
    add("--float32-up-to", type=positive_int, default=1024, help="longest ℓ in float32")
    add(
        "--configs",
        nargs="*",
        default=["20m", "60m", "150m"],
        help="trainings, by olmo_configs/; none: left out",
    )
    add(
        "--contexts",
        nargs="+",
        type=positive_int,
        default=[64, 512, 2048],
        help="train_context_length, in tokens",
    )
    add("--tokens-per-step", type=positive_int, default=65536, help="of a training, one micro-batch")
    add("--steps", type=positive_int, default=10, help="timed steps of each training loop")
    add("--repeats", type=positive_int, default=3, help="timed rounds of the engine")
    add("--compile-backend", default="inductor", help="torch.compile's, of the trainings that are compiled")
    add("--threads", type=positive_int, help="of a CPU; all cores if not given")
    add("--device", help="cuda or cpu; a GPU where there is one, if not given")
    add("--toy", action="store_true", help="everything tiny, whatever else is asked for")
    add("--out", type=Path, required=True, help="JSON file for every number")
    return script


def main(arguments: argparse.Namespace) -> None:
    """Measure, print, and write what there is after each part: a later one may fail."""
    if arguments.toy:
        vars(arguments).update(TOY)
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # or training would find a GPU by itself
    device = usable_device(arguments.device or best_device_type())
    keep_freed_memory()
    use_threads(arguments.threads)
    report: dict[str, Any] = {"machine": machine(device), "settings": _settings(arguments)}
    report["peaks"] = peaks = measured_peaks(device, ((64, 64, 64),) if arguments.toy else SQUARES)
    print(f"{report['machine']['device']}; matrix products, TFLOP/s")
    print("\n".join(f"  {name:9}{peak / 1e12:10.3f}" for name, peak in peaks.items()))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for part, measure in (("engine", engine_rows), ("training", training_rows)):
        report[part] = []
        for row in measure(arguments, device, peaks):
            report[part].append(row)
            print(_line(row), flush=True)
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")


def measured_peaks(device: torch.device, shapes: tuple[Shape, ...]) -> dict[str, float]:
    """FLOPs a second by dtype; TF32 where the device has it."""
    dtypes = "bfloat16", "float32"
    peaks = {dtype: matrix_product_peak(dtype, device, shapes).flops_per_second for dtype in dtypes}
    if device.type == "cuda":
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        peaks["TF32"] = matrix_product_peak("float32", device, shapes).flops_per_second
        torch.set_float32_matmul_precision(before)
    return peaks


def engine_rows(
    arguments: argparse.Namespace, device: torch.device, peaks: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """A row a model, length, dtype and way."""
    models = TOY_MODELS if arguments.toy else MODELS
    cases = [(name, length) for name in arguments.models for length in arguments.long_context_lengths]
    if cases:
        print(f"engine{'':19}{'ℓ':>6}  {'dtype':9}{'s/chunk':>10}{'x loop':>8}{'of peak':>9}  how")
    for name, length in progress(cases, "engine", "case"):
        lengths = ContextLengths(arguments.short_context_length, length, arguments.targets_per_chunk)
        problem = Problem(models[name], None, lengths, 0, 1 << 14, str(device))
        with _saying_why({"what": name, "long_context_length": length}) as failed:
            yield from _engine_rows_of(name, problem, arguments, peaks)
        yield from failed


def _engine_rows_of(
    name: str, problem: Problem, arguments: argparse.Namespace, peaks: dict[str, float]
) -> Iterator[dict[str, Any]]:
    lengths, answers = problem.lengths, {}
    is_short = lengths.long_context_length <= arguments.float32_up_to
    dtypes = ["float32", "bfloat16"] if is_short else ["bfloat16"]
    for dtype in dtypes:
        for size in arguments.tokens_per_batch:
            ours = VariantName(f"ours, {size} a batch", "variants", "SharedPrefixes", dtype)
            answers[ours] = Answers(ours, replace(problem, tokens_per_batch=size))
        loop = VariantName(LOOP, "variants", "AllTargetsLoop", dtype)
        answers[loop] = Answers(loop, problem)
    measured = {variant.key: Measured(variant, _answer(of, "introduce")) for variant, of in answers.items()}
    if "float32" in dtypes:
        refuse_unequal(measured, tolerance=0.001)
    for _ in range(arguments.repeats):
        for variant, of in answers.items():
            measured[variant.key].timed.append(_answer(of, "time"))
    seconds = {key: median(run.chunk_seconds for run in one.timed) for key, one in measured.items()}
    num_parameters = sum(weight.numel() for weight in problem.load("float32").parameters())
    for key, one in measured.items():
        flops_per_second = one.introduction.work.flops / seconds[key]
        yield {
            "what": f"{name}, {one.name.label}", "dtype": one.name.dtype, "num_parameters": num_parameters,
            "long_context_length": lengths.long_context_length, "num_pairs": num_pairs(lengths),
            "chunk_seconds": seconds[key], "timed_evaluations": one.timed[0].num_evaluations,
            "times_as_fast_as_loop": seconds[f"{LOOP}, {one.name.dtype}"] / seconds[key],
            "predicted_gain": predicted_gain(lengths), "flops_per_second": flops_per_second,
            "fraction_of_peak": flops_per_second / peaks[one.name.dtype],
            "peak_extra_bytes": max(run.peak_extra_bytes for run in one.timed), "how": one.introduction.note,
        }  # fmt: skip


def _answer(answers: Answers, question: str) -> Any:
    answer = answers(question)
    if isinstance(answer, str):
        raise InputError(answer)
    return answer


def training_rows(
    arguments: argparse.Namespace, device: torch.device, peaks: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """A row a configuration, context length and whether ours is compiled."""
    cases = [
        (config, context, is_compiled)
        for config in arguments.configs
        for context in arguments.contexts
        for is_compiled in (False, True)
    ]
    if cases:
        print(f"training{'':17}{'S':>6}  {'compile':9}{'tokens/s':>10}{'x plain':>8}{'of peak':>9}  plain's")
    precision = "amp_bf16" if device.type == "cuda" or arguments.toy else "auto"
    for config, context, is_compiled in progress(cases, "training", "case"):
        overrides = list(TOY_CONFIG) if arguments.toy else []
        overrides += [f"compile.backend={arguments.compile_backend}"] if is_compiled else []
        case = Case(config, context, precision)
        told = {"what": config, "train_context_length": context, "is_compiled": is_compiled}
        with (
            _saying_why(told) as failed,
            tempfile.TemporaryDirectory() as folder,
        ):
            compared = compare(
                case, VOCABULARY, arguments.tokens_per_step, arguments.steps, overrides, Path(folder), peaks
            )
            yield {**told, **asdict(compared)}
        yield from failed


@contextmanager
def _saying_why(told: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """A row of a case that fails, in place of an end to all."""
    failed: list[dict[str, Any]] = []
    try:
        yield failed
    except (InputError, RuntimeError, MemoryError) as error:
        reason = "out of memory" if is_out_of_memory(error) else str(error)
        failed.append({**told, "failed": reason.splitlines()[0][:200]})


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}


def _line(row: dict[str, Any]) -> str:
    length = row.get("long_context_length") or row["train_context_length"]
    start = f"{row['what']:25}{length:6}  "
    if "failed" in row:
        return f"{start}failed: {row['failed']}"
    if "chunk_seconds" in row:
        return (
            f"{start}{row['dtype']:9}{row['chunk_seconds']:10.3f}{row['times_as_fast_as_loop']:8.2f}"
            f"{row['fraction_of_peak']:9.1%}  {row['how']}"
        )
    return (
        f"{start}{'on' if row['is_compiled'] else 'off':9}{row['tokens_per_second']:10,.0f}"
        f"{row['ratio']:8.3f}{row['fraction_of_peak']:9.1%}  {row['plain_fraction_of_peak']:.1%}"
    )


if __name__ == "__main__":
    run_stage(parser(), main)
