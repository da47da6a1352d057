"""Speed and memory of tokenize_c4 beside `encode_batch` of the `tokenizers` library on the same text.

    python tests/benchmarks/tokenization.py
    python tests/benchmarks/tokenization.py --source 'c4/en/*.json.gz' --megabytes 2000 --rounds 1

The text is real and repeated to the size asked for, each time under another number, so that no document is
dropped as a repetition. The reference encodes texts that are in memory already, 1,000 at a time, on all
cores, and does nothing else. The stage is the whole command: start, reading, parsing, hashing, splitting,
encoding, writing, manifest. They take turns, so that a busy machine slows both. Memory is the sum of
resident sizes over the stage and its workers, sampled ten times a second; pages that they share count
for each of them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pipeline.results.provenance import git_commit, package_versions
from pipeline.text.documents import read_documents
from pipeline.text.sources import open_sources
from pipeline.text.tokenizer import parse_tokenizer_name

TEXTS_PER_CALL = 1000
SAMPLE_SECONDS = 0.1


def write_repeated(names: list[str], num_megabytes: int, path: Path) -> None:
    """Real text of the sources, over and over, each document with its number before it."""
    numbers = count()
    num_bytes_left = num_megabytes * 10**6
    with path.open("w", encoding="utf-8") as file:
        while num_bytes_left > 0:
            for document in read_documents(open_sources(names, c4_split="train"), Counter()):
                num_bytes_left -= file.write(json.dumps({"text": f"{next(numbers)} {document.text}"}) + "\n")
                if num_bytes_left <= 0:
                    break


def texts_of(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def reference_speed(path: Path, tokenizer: Tokenizer) -> float:
    """Tokens a second of bare encode_batch; reading and parsing are not timed."""
    num_tokens, seconds, texts = 0, 0.0, texts_of(path)
    while some := list(islice(texts, TEXTS_PER_CALL)):
        started = time.perf_counter()
        encodings = tokenizer.encode_batch(some, add_special_tokens=False)
        seconds += time.perf_counter() - started
        num_tokens += sum(len(encoding) for encoding in encodings)
    return num_tokens / seconds


def stage_speed(path: Path, out: Path, arguments: argparse.Namespace) -> tuple[float, float]:
    """(tokens a second, peak GiB of all processes) of the whole command."""
    command = [
        sys.executable,
        str(ROOT / "pipeline/tokenize_c4.py"),
        "--out",
        str(out),
        "--source",
        str(path),
    ]
    command += ["--tokenizer", arguments.tokenizer, "--num-workers", str(arguments.num_workers)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    peak_bytes = 0
    while process.poll() is None:
        peak_bytes = max(peak_bytes, resident_bytes(process.pid))
        time.sleep(SAMPLE_SECONDS)
    seconds = time.perf_counter() - started
    if process.returncode:
        sys.exit(f"the stage ended with code {process.returncode}: {' '.join(command)}")
    counts = json.loads((out / "manifest.json").read_text())["counts"]
    # The reference writes no EOS: those of the stage do not count.
    num_tokens = counts["train_tokens"] - counts["train_documents"] + counts["evaluation_tokens"]
    return num_tokens / seconds, peak_bytes / 2**30


def resident_bytes(pid: int) -> int:
    total = 0
    try:
        parent = psutil.Process(pid)
        for member in [parent, *parent.children(recursive=True)]:
            total += member.memory_info().rss
    except psutil.NoSuchProcess:  # it ended in between
        pass
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", nargs="+", default=["embedded"], help="real text, as for tokenize_c4")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--tokenizer", default="olmo")
    parser.add_argument("--num-workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(parse_tokenizer_name(arguments.tokenizer)))
    rows = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "text.jsonl"
        write_repeated(arguments.source, arguments.megabytes, path)
        for number in range(arguments.rounds):
            load = os.getloadavg()[0]
            reference = reference_speed(path, tokenizer)
            stage, peak_gib = stage_speed(path, Path(folder) / f"data-{number}", arguments)
            rows.append((reference, stage, stage / reference, peak_gib))
            print(
                f"round {number + 1}: encode_batch {reference:,.0f} tokens/s, tokenize_c4 {stage:,.0f},"
                f" ratio {stage / reference:.2f}, peak {peak_gib:.2f} GiB (load before: {load:.1f})",
                flush=True,
            )
    ratio, peak = statistics.median(row[2] for row in rows), max(row[3] for row in rows)
    packages = package_versions()
    print(
        f"\n{arguments.megabytes} MB, {arguments.tokenizer}, {arguments.num_workers} workers,"
        f" {os.cpu_count()} cores, tokenizers {packages['tokenizers']}, commit {git_commit()}\n"
        f"median ratio {ratio:.2f} (at least 0.80 is wanted), peak memory {peak:.2f} GiB (at most 1.50)"
    )


if __name__ == "__main__":
    main()
