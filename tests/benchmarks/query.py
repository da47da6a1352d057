"""A per-model, per-k aggregate over generated results, by query's SQL and by pandas, and one model's alone.

    python tests/benchmarks/query.py --rows 1000000

The data are `sparse_context_losses` with the real schema, written into a temporary folder that is
removed at the end. Each timing is a process of its own, from its start to the printed answer, on files
that the system has cached. pandas reads the columns that the aggregate needs, of `--pandas-rows` rows, since
it holds all of them in memory at once; the two answers are compared there. What finding the files whole costs
(query hashes those of each artefact that it reads) is told by the same queries without it, turn by turn.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pipeline.results.export import write_manifest
from pipeline.results.files import write_parquet
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS
from pipeline.results.versions import package_versions

NUM_MODELS = 10
KS = np.array([1, 2, 4, 8, 16], dtype=np.int32)
RULES, FAR_CONTEXTS = (
    ["leave_one_out", "leave_one_out_divergence", "random", "nearest"],
    ["own", "other_document"],
)
ROWS_OF_A_TARGET = len(KS) * len(RULES) * len(FAR_CONTEXTS)
TARGETS_OF_A_DOCUMENT = 16
AGGREGATE = """SELECT model, k, sum(short_context_loss - sparse_context_loss)
  / sum(short_context_loss - long_context_loss) AS recovered_fraction, count(*) AS num_rows
FROM sparse_context_losses WHERE far_context = 'own' AND rule = 'leave_one_out' GROUP BY ALL ORDER BY ALL"""
OF_ONE_MODEL = AGGREGATE.replace("WHERE", "WHERE model = 'm3' AND")
UNCHECKED = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pipeline.results import completeness
completeness.damage = lambda path, record: None
from pipeline.cli import prepare, run_module
prepare("query.py")
run_module("pipeline.query", "query.py")
"""
PANDAS = """
import json, sys
import pandas as pd
columns = ["model", "k", "rule", "far_context"]
columns += ["short_context_loss", "sparse_context_loss", "long_context_loss"]
filters = [("model", "in", sys.argv[2].split(","))]
rows = pd.read_parquet(sys.argv[1], columns=columns, filters=filters)
rows = rows[(rows["far_context"] == "own") & (rows["rule"] == "leave_one_out")]
rows["model"] = rows["model"].astype(str)
short, sparse, long = (rows[f"{kind}_context_loss"].astype("float64") for kind in ("short", "sparse", "long"))
sums = rows[["model", "k"]].assign(recovered=short - sparse, gain=short - long)
sums = sums.groupby(["model", "k"], as_index=False)[["recovered", "gain"]].sum()
sums["recovered_fraction"] = sums["recovered"] / sums["gain"]
print(json.dumps(sums[["model", "k", "recovered_fraction"]].to_dict("records")))
"""


def shard(num_rows: int, generator: np.random.Generator) -> pa.Table:
    """So many rows of one model: losses drawn at random, documents as long as real ones, keys in order."""
    target = np.arange(num_rows) // ROWS_OF_A_TARGET
    cell = np.arange(num_rows) % ROWS_OF_A_TARGET
    document = target // TARGETS_OF_A_DOCUMENT
    names = np.array([f"{number:016x}" for number in generator.integers(2**62, size=document[-1] + 1)])
    long_loss = generator.gamma(2.0, 1.5, target[-1] + 1).astype(np.float32)[target]
    short_loss = long_loss + generator.gamma(0.5, 0.4, target[-1] + 1).astype(np.float32)[target]
    sparse_loss = short_loss - generator.random(num_rows, dtype=np.float32) * (short_loss - long_loss)
    columns = {
        "document_id": pa.DictionaryArray.from_arrays(document.astype(np.int32), names).cast(pa.string()),
        "chunk_index": np.zeros(num_rows, np.int32),
        "target_position": (240 + target % TARGETS_OF_A_DOCUMENT).astype(np.int32),
        "rule": _repeated(RULES, cell // len(KS) % len(RULES)),
        "far_context": _repeated(FAR_CONTEXTS, cell // (len(KS) * len(RULES))),
        "k": KS[cell % len(KS)],
        "short_context_loss": short_loss,
        "long_context_loss": long_loss,
        "sparse_context_loss": sparse_loss,
    }
    schema = SCHEMAS["sparse_context_losses"]
    others = [field for field in schema if field.nullable and field.name not in columns]
    columns |= {field.name: pa.nulls(num_rows, field.type) for field in others}  # of other rules and judges
    metadata = {"schema_version": str(SCHEMA_VERSION), "packages": json.dumps(package_versions())}
    return pa.table(columns, schema=schema.with_metadata(metadata))


def _repeated(names: list[str], indices: np.ndarray) -> pa.Array:
    return pa.DictionaryArray.from_arrays(indices.astype(np.int32), names).cast(pa.string())


def generate(results: Path, num_rows: int, num_shards: int) -> None:
    """Write `num_rows` rows, split evenly between `NUM_MODELS` models of `num_shards` shards each."""
    generator = np.random.default_rng(0)
    for model in range(NUM_MODELS):
        folder = results / "sparse_context_losses" / f"model=m{model}"
        for index in range(num_shards):
            table = shard(num_rows // NUM_MODELS // num_shards, generator)
            write_parquet(folder / f"{index:05d}-of-{num_shards:05d}.parquet", table)
    write_manifest(results)


class Run(NamedTuple):
    """A process: how long it took, all its threads' time on processors, and the rows it printed as JSON."""

    wall_seconds: float
    processor_seconds: float
    rows: list[dict[str, object]]


def timed(command: list[str]) -> Run:
    """One run of a command that prints JSON."""
    started, before = time.perf_counter(), _processor_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall_seconds = time.perf_counter() - started
    return Run(wall_seconds, _processor_seconds() - before, json.loads(done.stdout))


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def query(results: Path, sql: str, *, is_checked: bool = True) -> Run:
    """`timed` of one query, which finds the files whole before, or takes them as they are."""
    program = [str(ROOT / "pipeline" / "query.py")] if is_checked else ["-c", UNCHECKED]
    return timed([sys.executable, *program, "--results", str(results), "--format", "json", sql])


def show(name: str, num_rows: int, runs: list[Run]) -> None:
    """One line: the fastest run, the least that one took of the processors, and all runs."""
    wall, processor = min(run.wall_seconds for run in runs), min(run.processor_seconds for run in runs)
    times = ", ".join(f"{run.wall_seconds:.2f}" for run in runs)
    print(f"{name:26} {num_rows:12,} rows {wall:7.2f} s {processor:7.2f} processor s  (runs: {times})")


def main(arguments: argparse.Namespace) -> None:
    """Generate, query, compare, remove."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        results = Path(folder)
        generate(results, arguments.rows, arguments.shards)
        files = list(results.glob("*/*/*.parquet"))
        num_bytes = sum(path.stat().st_size for path in files)
        print(f"{arguments.rows:,} rows, {len(files):,} files, {num_bytes / 1e9:.2f} GB on disk")
        queries = {
            "all models": (AGGREGATE, arguments.rows),
            "WHERE model = 'm3'": (OF_ONE_MODEL, arguments.rows // NUM_MODELS),
            "no rows read": ("SELECT 1 AS one", 0),
        }
        runs: dict[str, list[Run]] = {}
        for name, (sql, num_rows) in queries.items():
            checked, unchecked = runs.setdefault(name, []), []
            for _ in range(arguments.rounds):
                checked.append(query(results, sql))
                unchecked.append(query(results, sql, is_checked=False))
            show(f"query, {name}", num_rows, checked)
            show("  without hashing", num_rows, unchecked)
        num_models = max(1, min(NUM_MODELS, arguments.pandas_rows * NUM_MODELS // arguments.rows))
        models = [f"m{model}" for model in range(num_models)]
        artefact = str(results / "sparse_context_losses")
        by_pandas = [
            timed([sys.executable, "-c", PANDAS, artefact, ",".join(models)]) for _ in range(arguments.rounds)
        ]
        show("pandas", arguments.rows * num_models // NUM_MODELS, by_pandas)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        print(f"largest process: {peak:.1f} GB")
        answers = runs["all models"][0].rows
        ours = [row["recovered_fraction"] for row in answers if row["model"] in models]
        theirs = [row["recovered_fraction"] for row in by_pandas[0].rows]
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        assert sum(int(str(row["num_rows"])) for row in answers) == arguments.rows // 8


def parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    described = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    described.add_argument("--rows", type=int, default=1_000_000, help="a multiple of 400 x models x shards")
    described.add_argument("--shards", type=int, default=25, help="files a model")
    described.add_argument(
        "--pandas-rows", type=int, default=30_000_000, help="rows that fit the memory of pandas"
    )
    described.add_argument("--rounds", type=int, default=3, help="runs of each")
    described.add_argument(
        "--folder", type=Path, help="where the temporary folder is made; the system's if absent"
    )
    return described


if __name__ == "__main__":
    main(parser().parse_args())
