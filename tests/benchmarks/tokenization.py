"""Speed and memory of tokenize_c4 beside `encode_batch` of the `tokenizers` library on the same text.

    python tests/benchmarks/tokenization.py
    python tests/benchmarks/tokenization.py --source 'c4/en/*.json.gz' --megabytes 2000 --rounds 1

The text is real and repeated to the size asked for, each time under another number, so that no document is
dropped as a repetition. The reference encodes texts that are in memory already, 1,000 at a time, on all
cores, and does nothing else. The stage is the whole command: start, reading, parsing, hashing, splitting,
encoding, writing, manifest. They take turns, so that a busy machine slows both. Memory is the sum of
resident sizes over the stage and its workers, sampled ten times a second; pages that they share count
for each of them. On a machine that does other work too, the ratio of tokens by CPU second says more than that
of tokens by second: it charges each side for the time that it ran.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pipeline.results.versions import git_commit, package_versions
from pipeline.text.sources import open_sources, read_documents
from pipeline.text.tokenizer import parse_tokenizer_name

TEXTS_PER_CALL = 1000
SAMPLE_SECONDS = 0.1


def write_repeated(names: list[str], num_megabytes: int, path: Path) -> None:
    """Real text of the sources, over and over, each document with its number before it."""
    numbers = count()
    num_bytes_left = num_megabytes * 10**6
    with path.open("w", encoding="utf-8") as file:
        while num_bytes_left > 0:
            for document in read_documents(open_sources(names, c4_split="train")):
                num_bytes_left -= file.write(json.dumps({"text": f"{next(numbers)} {document.text}"}) + "\n")
                if num_bytes_left <= 0:
                    break


def texts_of(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


class Cost(NamedTuple):
    """What one side took for its tokens."""

    num_tokens: int
    seconds: float
    cpu_seconds: float
    peak_gib: float = 0.0


def reference_cost(path: Path, tokenizer: Tokenizer) -> Cost:
    """Bare encode_batch; reading and parsing are not timed."""
    num_tokens, seconds, cpu_seconds, texts = 0, 0.0, 0.0, texts_of(path)
    while some := list(islice(texts, TEXTS_PER_CALL)):
        started, cpu_started = time.perf_counter(), time.process_time()
        encodings = tokenizer.encode_batch(some, add_special_tokens=False)
        seconds += time.perf_counter() - started
        cpu_seconds += time.process_time() - cpu_started
        num_tokens += sum(len(encoding) for encoding in encodings)
    return Cost(num_tokens, seconds, cpu_seconds)


def stage_cost(path: Path, out: Path, arguments: argparse.Namespace) -> Cost:
    """The whole command, with its workers."""
    command = [sys.executable, f"{ROOT}/pipeline/tokenize_c4.py", "--out", str(out), "--source", str(path)]
    command += ["--tokenizer", arguments.tokenizer, "--num-workers", str(arguments.num_workers)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    peak_bytes, cpu_seconds = 0, dict[int, float]()
    while process.poll() is None:
        resident_bytes = 0
        for member in members(process.pid):
            with suppress(psutil.NoSuchProcess):  # it ended in between
                resident_bytes += member.memory_info().rss
                cpu_seconds[member.pid] = sum(member.cpu_times()[:2])  # the last sample of each is its total
        peak_bytes = max(peak_bytes, resident_bytes)
        time.sleep(SAMPLE_SECONDS)
    seconds = time.perf_counter() - started
    if process.returncode:
        sys.exit(f"the stage ended with code {process.returncode}: {' '.join(command)}")
    counts = json.loads((out / "manifest.json").read_text())["counts"]
    # The reference writes no EOS: those of the stage do not count.
    num_tokens = counts["train_tokens"] - counts["train_documents"] + counts["evaluation_tokens"]
    return Cost(num_tokens, seconds, sum(cpu_seconds.values()), peak_bytes / 2**30)


def members(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", nargs="+", default=["embedded"], help="real text, as for tokenize_c4")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--tokenizer", default="olmo")
    parser.add_argument("--num-workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-only", action="store_true", help="leave the reference out")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(parse_tokenizer_name(arguments.tokenizer)))
    print(
        f"{arguments.megabytes} MB, {arguments.tokenizer}, {arguments.num_workers} workers,"
        f" {os.cpu_count()} cores, tokenizers {package_versions()['tokenizers']}, commit {git_commit()}",
        flush=True,
    )
    ratios, peak_gib = [], 0.0
    with TemporaryDirectory() as folder:
        path = Path(folder) / "text.jsonl"
        write_repeated(arguments.source, arguments.megabytes, path)
        for number in range(arguments.rounds):
            stage = stage_cost(path, Path(folder) / f"data-{number}", arguments)
            peak_gib = max(peak_gib, stage.peak_gib)
            print(line("tokenize_c4", stage), flush=True)
            if not arguments.memory_only:
                reference = reference_cost(path, tokenizer)
                print(line("encode_batch", reference), flush=True)
                ratios.append([speed(stage)[kind] / speed(reference)[kind] for kind in (0, 1)])
    print(f"peak memory {peak_gib:.2f} GiB (at most 1.50)")
    if ratios:
        by_second, by_cpu_second = (statistics.median(kind) for kind in zip(*ratios, strict=True))
        print(f"median ratio {by_second:.2f} by second (at least 0.80), {by_cpu_second:.2f} by CPU second")


def speed(cost: Cost) -> tuple[float, float]:
    return cost.num_tokens / cost.seconds, cost.num_tokens / cost.cpu_seconds


def line(name: str, cost: Cost) -> str:
    by_second, by_cpu_second = speed(cost)
    memory = f", {cost.peak_gib:.2f} GiB" if cost.peak_gib else ""
    speeds = f"{by_second:9,.0f} tokens/s, {by_cpu_second:9,.0f} by CPU second"
    return f"{name:12} {speeds}{memory} (load {os.getloadavg()[0]:.1f})"


if __name__ == "__main__":
    main()
