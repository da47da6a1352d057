"""How programs begin and end, each in a process of its own: imports, signals, encodings, closed streams."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import PROGRAMS

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {
    "accelerate", "datasets", "matplotlib", "nbclient", "olmo", "pandas", "scipy", "statsmodels", "torch",
    "transformers",
}  # fmt: skip


def python(*words: str, **options: object) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


def test_the_console_command_knows_every_program_and_names_itself_as_it_was_typed() -> None:
    files = (path for folder in ("pipeline", "analysis") for path in (ROOT / folder).glob("*.py"))
    runnable = {path for path in files if 'if __name__ == "__main__":' in path.read_text("utf-8")}
    assert sorted(PROGRAMS) == sorted(f"{path.parent.name}.{path.stem}" for path in runnable)
    sparsity = ("-c", "from pipeline.cli import main; main()")
    shown = python(*sparsity, "--help")
    names = [line.split()[0] for line in shown.stdout.decode().splitlines() if line.startswith("  ")]
    assert [program.rpartition(".")[2] for program in PROGRAMS] == names
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert python(*sparsity, "query", "--help").stdout.startswith(b"usage: sparsity query [-h]")
    refused = python(*sparsity, "quary")
    assert refused.stderr == b"sparsity: error: unknown program 'quary'; did you mean 'query'?\n"
    assert refused.returncode == 2


def test_a_help_loads_nothing_heavy() -> None:
    code = (
        "import importlib, sys\n"
        f"for program in {PROGRAMS}:\n"
        "  try: importlib.import_module(program).parser().parse_args(['--help'])\n"
        f"  except SystemExit: heavy = {HEAVY} & sys.modules.keys()\n"
        "  if heavy: sys.exit(f'{program} loads {heavy}')"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"usage: ") == len(PROGRAMS)


def test_without_the_libraries_a_program_says_how_to_get_them(tmp_path: Path) -> None:
    for program in ("pipeline/query.py", "analysis/summary.py"):
        done = python("-I", "-S", str(ROOT / program), "--results", str(tmp_path))
        (sentence,) = done.stderr.decode().splitlines()
        assert (done.returncode, "`make install`" in sentence) == (2, True)
        assert sentence.startswith(f"{Path(program).name}: error: the library ")


PROBE = """
import sys
from pipeline.cli import prepare, run_module
prepare()
run_module("probe_module", "probe")
"""


def probe(tmp_path: Path, body: str) -> "subprocess.Popen[bytes]":
    """A program whose module is `body`, begun; "ready" on standard output says that it runs."""
    (tmp_path / "probe_module.py").write_text(f"print('ready', flush=True)\n{body}\n", encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-c", PROBE], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
    )  # fmt: skip


MAIN = "import argparse\ndef parser(): return argparse.ArgumentParser('probe')\ndef main(arguments):\n    {}"


def test_a_signal_ends_it_at_once_in_native_code_too(tmp_path: Path) -> None:
    # sleep() would be called again and again where Python had a handler to run.
    for number in (signal.SIGINT, signal.SIGTERM):
        with probe(tmp_path, "import ctypes; ctypes.CDLL(None).sleep(60)") as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(number)
            _, said = process.communicate(timeout=20)
        assert (process.returncode, said) == (-number, b"")


def test_what_nobody_reads_ends_it_in_silence(tmp_path: Path) -> None:
    with probe(tmp_path, MAIN.format("print('many lines\\n' * 100_000)")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize(
    "locale",
    [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii:strict"}],
    ids=["C", "ascii"],
)
def test_every_locale_shows_help_and_takes_every_name(locale: dict[str, str], tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    environment |= locale
    shown = python("pipeline/loss_differences.py", "--help", env=environment)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"chunk length" in shown.stdout
    missing = tmp_path / "Größe-ℓ-文"
    said = python("pipeline/query.py", "SELECT 'ℓ'", "--results", str(missing), env=environment)
    assert said.returncode == 2
    assert b"Traceback" not in said.stderr
    assert len(said.stderr.splitlines()) == 1
