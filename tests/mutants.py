"""Which wrong programs do the fast tests notice? `make mutants`: some hours on one core, resumable.

The program draws mutants of one token each (cosmic-ray's operators: another number, comparison or operator, a
condition negated, a loop that never runs) from the packages that make numbers, at most one for each place in
the source. On each, it runs the tests that execute its line, nearest and quickest first, until one fails or
10% of the suite's time is over; so a test that is farther away may notice a mutant that survives here. Lines
that are executed at import (defaults, fields, constants) may concern any test. Results are lines of
tests/mutants.jsonl; what each test executes is recorded once, in runs/mutants. Run the program again to
resume, on another machine too; it then repeats mutants killed by a test that is gone and, with --again,
survivors.

A mutant lives in memory, in a process forked from this one, which has imported the libraries but nothing of
the repository. Programs that tests start in processes of their own stay unchanged: a mutant which only such
tests would notice survives here.
"""

import argparse
import ast
import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from itertools import accumulate, islice
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import forked_stages
import pandas as pd
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from coverage import CoverageData
from tqdm import tqdm

SOURCES = [
    path
    for name in ("measuring", "models", "results", "text")
    for path in sorted((ROOT / "sparsity_length" / name).glob("*.py"))
]
OUT = ROOT / "runs" / "mutants"
RESULTS = ROOT / "tests" / "mutants.jsonl"
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.json"
"""Mutants that no test can notice, each with its reason."""
FIRST_SECONDS = 10
"""Of tests that run before the files of all others are collected."""
NEAREST = 0.1
"""Of the time of all tests, what the nearest may take that run on a mutant."""
MOST_SECONDS = 60
"""Of a core, beside thrice what the tests take: whoever needs more is taken to never end."""
NO_TEST = "time, or import"
LEFT_OUT = ("_Eq_Is", "_NotEq_IsNot", "_BitOr_", "Variable")
"""Operators whose mutants differ by chance (whether equal strings are one), are of annotations (A | B), or
need arguments."""

Place = tuple[str, Path, int, str, int]
"""Hash, file, line (from 1), operator, and which of its mutants in the file."""


class Chosen:
    """A plugin of pytest: these tests in this order (none: all), the one that failed, and the times."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.failed = ""
        self.seconds: dict[str, float] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Order what was chosen; or import all sources, so that what import executes is no test's own."""
        items = {item.nodeid: item for item in session.items}
        session.items[:] = [items[name] for name in self.names] or session.items
        for path in () if self.names else SOURCES:
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the times; note what fails."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        self.failed = report.nodeid if report.failed else self.failed


def in_a_fork(names: Sequence[str], seconds: int, path: str, source: str, *options: str) -> tuple[str, dict]:
    """Run tests in a process in which a file has this source: the one that failed, and the times of all."""
    report = OUT / "report.json"
    report.write_text(json.dumps([NO_TEST, {}]))
    if process := os.fork():
        latest = time.monotonic() + 4 * seconds  # some mutants wait for ever, and use no time of a core
        while not os.waitpid(process, os.WNOHANG)[0]:
            time.sleep(0.1)
            if time.monotonic() > latest:
                os.kill(process, signal.SIGKILL)
        return json.loads(report.read_text())
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    get_code = SourceFileLoader.get_code
    SourceFileLoader.get_code = lambda loader, name: (  # type: ignore[method-assign]
        compile(source, path, "exec") if loader.path == path else get_code(loader, name)
    )
    with (OUT / "log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    chosen = Chosen(names)
    files = sorted({name.partition("::")[0] for name in names})
    code = pytest.main(["-q", "-p", "no:cacheprovider", *options, *files], [chosen])
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        report.write_text(json.dumps([chosen.failed, chosen.seconds]))
    os._exit(0)


def places(seed: int) -> Iterator[Place]:
    """One mutant for each place in the source, drawn so that an edit elsewhere changes no draw."""
    names = [name for name in operator_names() if not any(part in name for part in LEFT_OUT)]
    operators = {name: get_operator(name)() for name in names}
    for path in SOURCES:
        lines = path.read_text().splitlines()
        nodes = [*ast_nodes(get_ast(path.read_text()))]
        at: dict[tuple[int, int], list[Place]] = {}
        for name, operator in operators.items():
            starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
            for index, (line, column) in enumerate(starts):
                here = at.setdefault((line, column), [])
                number = lines[:line].count(lines[line - 1])  # of equal lines
                drawn = f"{seed} {path.name} {lines[line - 1]} {number} {column} {name} {len(here)}"
                here.append((hashlib.sha256(drawn.encode()).hexdigest(), path, line, name, index))
        yield from map(min, at.values())


def programs(seed: int) -> Iterator[tuple[Place, str]]:
    """Places in the order of the draw, and the mutated sources, those which are any."""
    for place in sorted(places(seed)):
        _, path, _, operator, index = place
        mutated = mutate_code(path.read_text(), get_operator(operator)(), index)
        with suppress(SyntaxError):
            ast.parse(mutated)
            yield place, mutated


def tests_of(path: Path, line: int, contexts: dict[int, list[str]], seconds: dict[str, float]) -> list[str]:
    """The tests that may notice a change of a line: the nearest first, and of these the quickest."""
    while line > 1 and line not in contexts:  # of a statement of several lines
        line -= 1
    imported = "" in contexts.get(line, [""])
    names = {name for number in (contexts if imported else [line]) for name in contexts.get(number, ())}
    files = {
        name.partition("::")[0] for name in names if name.endswith("|setup")
    }  # fixtures serve a whole file
    reaching = {name for name in seconds if f"{name}|run" in names or name.partition("::")[0] in files}
    near = (f"test_{path.stem}", f"tests/{path.parent.name}/")

    def distance(name: str) -> tuple[bool, bool, float]:
        return name not in reaching, not any(part in name for part in near), seconds[name]

    return sorted(seconds if imported else reaching, key=distance)


def killer(names: list[str], seconds: dict[str, float], path: str, mutated: str) -> str:
    """The test that notices a mutant; empty if it survives."""
    totals = [*accumulate(seconds[name] for name in names)]
    first = sum(total < FIRST_SECONDS for total in totals) + 1
    last = sum(total < NEAREST * sum(seconds.values()) for total in totals) + 1
    for part in (names[:first], names[first:last]):
        most = round(MOST_SECONDS + 3 * sum(seconds[name] for name in part))
        if part and (failed := in_a_fork(part, most, path, mutated, "-x")[0]):
            return failed
    return ""


def main() -> None:
    """Record the tests, draw, try, and print the table and what survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=320)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="try anew what survived")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    os.environ["COVERAGE_FILE"] = str(OUT / ".coverage")
    forked_stages.share_one_server()
    for library in forked_stages.LIBRARIES:
        importlib.import_module(library)
    recorded = OUT / "tests.json"
    if not recorded.exists():
        options = ("--cov=sparsity_length", "--cov-context=test", "--cov-report=")
        recorded.write_text(json.dumps(in_a_fork([], 3600, "", "", *options)[1]))
    seconds = json.loads(recorded.read_text())
    lines = CoverageData(str(OUT / ".coverage"))
    lines.read()
    RESULTS.touch()
    known = {row["key"]: row for row in map(json.loads, RESULTS.read_text().splitlines())}
    standing = {*seconds, NO_TEST, *([] if arguments.again else [""])}
    rows = []
    drawn = islice(programs(arguments.seed), arguments.mutants)
    for (key, path, line, *_), mutated in tqdm(drawn, total=arguments.mutants, smoothing=0):
        if known.get(key, {}).get("killer") not in standing:
            was, now = (text.splitlines()[line - 1].strip() for text in (path.read_text(), mutated))
            names = tests_of(path, line, lines.contexts_by_lineno(str(path)), seconds)
            known[key] = {
                "key": key,
                "package": path.parent.name,
                "file": path.name,
                "was": was,
                "now": now,
                "killer": killer(names, seconds, str(path), mutated),
            }
            with RESULTS.open("a") as file:
                file.write(json.dumps(known[key]) + "\n")
        rows.append(known[key])
    frame = pd.DataFrame(rows)
    changes = ["package", "file", "was", "now"]
    equivalent = pd.read_json(EQUIVALENT).assign(fate="equivalent").set_index(changes)["fate"]
    fates = frame["killer"].eq("").map({True: "survived", False: "killed"})
    frame["fate"] = frame.join(equivalent, on=changes)["fate"].where(fates == "survived").fillna(fates)
    tqdm.write(pd.crosstab(frame["package"], frame["fate"], margins=True).to_string())
    tqdm.write(frame.query("fate == 'survived'")[changes].to_json(orient="records", lines=True))


if __name__ == "__main__":
    main()
