"""What one GPU is worth, in one report: are its numbers the CPU's, how fast is it, what does a study find?

Four parts, one after another:

tests      pytest -m gpu: engine and training against the CPU
benchmark  tests/benchmarks/gpu.py: engine and training, as shares of the bfloat16 peak
demo       the demo on the GPU; the CPU measures the same models, and losses and influences are compared
study      of the decisive studies (60m, 2m, 300k) the largest whose --dry-run fits what is left of --hours

Each part writes <out>/<part>.json when it ends, with what made it. The same command again skips parts that
are whole and goes on within the one that was stopped; delete a file to run its part again. <out>/report.md
is written after each part. A study needs C4=FOLDER with files in C4's schema; without it, none is run.

on a GPU; `make gpu HOURS=4` runs it:
  C4=FOLDER python tests/gpu_report.py --hours 4 --out runs/gpu

in minutes on a CPU, with tiny models, to see that it runs:
  python tests/gpu_report.py --device cpu --toy --hours 1 --out runs/gpu_toy
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks")]

from matrix_product_peak import machine  # noqa: E402

from pipeline.cli import InputError, file_path, logger, positive_float, run_stage, stage_parser  # noqa: E402
from pipeline.models.devices import usable_device  # noqa: E402
from pipeline.results.read import read_artefact  # noqa: E402

STUDIES = ("decisive_60m", "decisive_2m", "decisive_300k")
"""The largest first."""
COMPARED = {
    "loss_differences": ("long_context_loss", ["model", "document_id", "target_position"], 1e-3),
    "influential_tokens": ("influence", ["model", "document_id", "target_position", "far_context",
                                         "rule", "context_position"], 1e-3),
}  # fmt: skip
"""Table -> column, what a row is of, and the largest difference that passes, nats in float32."""
GOALS = {"engine": 0.40, "training": 0.45}
"""Shares of the bfloat16 peak."""
ENGINE_LENGTH = 1024
TOY_STUDY = [
    "data.tokenizer=bpe:320", "sizes.demo.max_duration=4", "evaluation.max_documents=3",
    "evaluation.loss_documents=4", "evaluation.targets_per_chunk=4", "evaluation.long_context_length=64",
    "sizes.demo.overrides=[model.d_model=16,model.n_heads=2,model.n_layers=1,scheduler.t_warmup=2,precision=fp32,"
    "global_train_batch_tokens=512,device_train_microbatch_tokens=512,eval_context_lengths=null,save_interval=4]",
    "models.short-pose.pose_target_length=64", "models.long-seed0.train_context_length=64",
    "models.long-seed1.train_context_length=64",
]  # fmt: skip
MEASURING = ["evaluation.stages=[loss_differences,influential_tokens]",
             "further_evaluations.only_chosen.stages=[influential_tokens]"]  # fmt: skip
"""No figures and no summary: numbers are compared, and pictures of two machines are not."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    script = stage_parser(__doc__)
    add = script.add_argument
    add("--hours", type=positive_float, required=True, help="for all parts; the study gets what is left")
    add("--device", default="cuda", help="cuda or cpu")
    add("--toy", action="store_true", help="everything tiny")
    add(
        "--out",
        type=file_path,
        required=True,
        help="folder of the parts, of what they made, and of report.md",
    )
    return script


def main(arguments: argparse.Namespace) -> None:
    """Run what is missing and write the report after each part."""
    end = time.monotonic() + 3600 * arguments.hours
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = usable_device(arguments.device)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "tests": lambda: run_tests(arguments),
        "benchmark": lambda: run_benchmark(arguments),
        "demo": lambda: run_demo(arguments),
        "study": lambda: run_study(arguments, (end - time.monotonic()) / 3600),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, part in parts.items():
        path = arguments.out / f"{name}.json"
        if not path.exists():
            begin = time.monotonic()
            result = {"machine": machine(device), "commit": commit(), **part()}
            result["minutes"] = (time.monotonic() - begin) / 60
            path.with_suffix(".part").write_text(json.dumps(result, indent=1, default=str) + "\n")
            path.with_suffix(".part").replace(path)
        found[name] = json.loads(path.read_text())
        (arguments.out / "report.md").write_text(report(found))
    sys.stdout.write((arguments.out / "report.md").read_text())


def commit() -> str:
    """Of the code, short."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def call(arguments: argparse.Namespace, name: str, *words: str, device: str | None = None) -> str:
    """Run a program of the repository; its output, which <out>/<name>.log keeps too."""
    environment = dict(os.environ)
    if (device or arguments.device) == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    logger.info("%s: %s", name, " ".join(words))
    log = arguments.out / f"{name}.log"
    with log.open("a") as file:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT,
            check=False,
        )  # fmt: skip
    if done.returncode and name != "tests":
        raise InputError(f"{' '.join(words)} ended with exit code {done.returncode}; {log} says why")
    return log.read_text()


def run_tests(arguments: argparse.Namespace) -> dict[str, Any]:
    """What pytest's closing line says, of the tests that need a GPU."""
    log = call(arguments, "tests", "-m", "pytest", "-m", "gpu", "-n", "0", "-q")
    lines = re.findall(r"^(?:=+ )?(.*\d (?:passed|failed|skipped|error).*?)(?: =+)?$", log, re.MULTILINE)
    if not lines:
        raise InputError(f"pytest did not end; {arguments.out / 'tests.log'} says why")
    return {
        "closing_line": lines[-1],
        "has_passed": re.search("passed", lines[-1]) is not None
        and re.search("failed|error", lines[-1]) is None,
    }


def run_benchmark(arguments: argparse.Namespace) -> dict[str, Any]:
    """The numbers of benchmarks/gpu.py."""
    out = arguments.out.resolve() / "benchmark_rows.json"
    toy = ["--toy"] if arguments.toy else []
    device = ["--device", arguments.device]
    call(arguments, "benchmark", "tests/benchmarks/gpu.py", "--out", str(out), *device, *toy)
    rows = json.loads(out.read_text())
    return {name: rows[name] for name in ("peaks", "engine", "training")}


def run_demo(arguments: argparse.Namespace) -> dict[str, Any]:
    """The largest difference between what the device and the CPU measure of the same models."""
    folder, beside = (arguments.out.resolve() / name for name in ("demo", "demo_on_cpu"))
    words = ["pipeline/study.py", "olmo_configs/studies/demo.yaml", *MEASURING]
    words += TOY_STUDY if arguments.toy else []
    call(arguments, "demo", *words, f"run={folder}")
    if not beside.exists():
        made = beside.with_name("demo_on_cpu.part")
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(folder, made, ignore=shutil.ignore_patterns("results", "logs", "figures", "lock*"))
        made.replace(beside)
    call(arguments, "demo_on_cpu", *words, f"run={beside}", device="cpu")
    return {artefact: compared(folder / "results", beside / "results", artefact) for artefact in COMPARED}


def compared(results: Path, others: Path, artefact: str) -> dict[str, Any]:
    """How far two results of the same models are apart."""
    column, keys, tolerance = COMPARED[artefact]
    columns = [key for key in keys if key != "model"] + [column]
    both = [read_artefact(folder, artefact, columns) for folder in (results, others)]
    joined = both[0].merge(both[1], on=keys, suffixes=("", "_there"))
    differences = (joined[column] - joined[f"{column}_there"]).abs()
    largest = float(np.nanmax(differences))
    return {
        "column": column, "rows": len(both[0]), "rows_in_both": len(joined), "largest_difference": largest,
        "tolerance": tolerance, "has_passed": largest <= tolerance and len(joined) >= 0.99 * len(both[0]),
    }  # fmt: skip


def run_study(arguments: argparse.Namespace, hours: float) -> dict[str, Any]:
    """The largest of `STUDIES` that fits; none where there is no text or no time."""
    if arguments.toy or "C4" not in os.environ:
        return {"study": None, "why": "everything is tiny" if arguments.toy else "C4=FOLDER is not given"}
    for name in STUDIES:
        words = ["pipeline/study.py", f"olmo_configs/studies/{name}.yaml"]
        words += ["evaluation.max_documents=448"] if name == "decisive_2m" else []
        where = f"run={arguments.out.resolve() / name}"
        needed = hours_of(call(arguments, f"{name}_plan", *words, where, "--dry-run", "--jobs", "1"))
        if needed <= hours:
            call(arguments, name, *words, where)
            return {"study": name, "estimated_hours": needed, "command": " ".join(words)}
    return {"study": None, "why": f"none fits {hours:.2f} hours"}


def hours_of(plan: str) -> float:
    """The total of a --dry-run.

    >>> hours_of("# in all, of what has not finished: 8.4e+17 FLOPs, 1,001.52 hours; at its peak")
    1001.52
    """
    total = re.findall(r"^# in all.*? ([\d,.]+) hours", plan, re.MULTILINE)
    return float(total[-1].replace(",", "")) if total else 0.0


def report(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: what is proven, on which hardware, and what was not reached."""
    made, lines = next(iter(found.values())), []
    on = made["machine"]
    lines += ["# What one GPU is worth", "", f"{on['device']}, torch {on['torch']}, commit {made['commit']}."]
    lines += ["", "| part | found | reached | minutes |", "|---|---|---|---|"]
    for name, result in found.items():
        for words, is_reached in findings(name, result):
            lines.append(f"| {name} | {words} | {is_reached} | {result['minutes']:.1f} |")
    return "\n".join([*lines, ""])


def findings(part: str, result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A line of the report each: what was found, and whether it is what it should be."""
    if part == "tests":
        return [(result["closing_line"], yes(result["has_passed"]))]
    if part == "demo":
        return [
            (
                f"{name}: {one['column']} differs by {one['largest_difference']:.1e} nats at most from the"
                f" CPU's, in {one['rows_in_both']:,} rows of {one['rows']:,}; {one['tolerance']:.0e} passes",
                yes(one["has_passed"]),
            )
            for name, one in result.items()
            if name in COMPARED
        ]
    if part == "study":
        if result["study"] is None:
            return [(f"no study: {result['why']}", "")]
        hours, command = result["estimated_hours"], result["command"]
        return [(f"{result['study']}, estimated at {hours:.2f} hours: `{command}`", "")]
    lines = [(f"bfloat16 products: {result['peaks']['bfloat16'] / 1e12:.1f} TFLOP/s", "")]
    for kind, goal in GOALS.items():
        rows = [row for row in result[kind] if "fraction_of_peak" in row and row["dtype"] == "bfloat16"]
        if kind == "engine":
            longest = max((row["long_context_length"] for row in rows), default=0)
            length = min(ENGINE_LENGTH, longest)
            rows = [
                row for row in rows if row["way"].startswith("ours") and row["long_context_length"] == length
            ]
        for what in dict.fromkeys(row["what"] for row in rows):
            best = max((row for row in rows if row["what"] == what), key=lambda row: row["fraction_of_peak"])
            at = best.get("long_context_length") or best.get("train_context_length")
            share = best["fraction_of_peak"]
            lines.append(
                (f"{kind}, {what} at {at} tokens: {share:.0%} of that; goal {goal:.0%}", yes(share >= goal))
            )
        failed = [f"{row['what']}: {row['failed']}" for row in result[kind] if "failed" in row]
        lines += [(f"{kind} failed: {words}", "no") for words in failed]
    return lines


def yes(is_reached: bool) -> str:
    """In a word."""
    return "yes" if is_reached else "no"


if __name__ == "__main__":
    run_stage(parser(), main)
