"""The pages: the first is short, every link leads somewhere, every command is one that its program takes."""

import argparse
import importlib
import re
from functools import cache
from pathlib import Path

import pytest
import shown_commands
from shown_commands import ROOT, Shown

PAGES = sorted(path for path in ROOT.rglob("*.md") if not {".venv", "runs"} & set(path.parts))
FOLDERS = ("olmo_configs", "pipeline", "analysis", "slurm", "tests")
MADE = ("CHANGELOG.md",)  # tells of what once was


def names(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """The page without code."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    return re.sub(r"`[^`\n]*`", "`code`", "\n".join(lines))


def anchor(heading: str) -> str:
    """What a browser of the repository calls a heading: its words in lower case, joined by hyphens."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, fragment = target.partition("#")
        if re.match(r"\w+:", target):
            continue
        led_to = (page.parent / path).resolve() if path else page
        if not led_to.exists() or (fragment and fragment not in anchors(led_to)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_links_by_example(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Does k\\* rise, `really`?\n[a](#does-k-rise-really) [b](#no) [c](no.md) [d](https://x.y)\n"
    )
    assert broken_links(page) == ["#no", "no.md"]


def test_the_first_page_is_short_and_its_first_screen_says_what_matters() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    first = "\n".join(lines[:40])
    assert len(lines) <= 150
    assert "each predicted token\ndepends on only a few earlier tokens?" in first
    assert re.search(r"!\[.*\]\(\S+\.png\)", first)
    assert "    make demo " in first and "    make test " in first
    linked = set(re.findall(r"\]\(([^)#]+)\)", "\n".join(lines)))
    assert {f"{folder}/README.md" for folder in FOLDERS} <= linked
    assert {names(page) for page in PAGES if page.name != "README.md"} - {
        *MADE,
        "analysis/methods.md",
    } <= linked


@cache
def parser_of(module: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = importlib.import_module(module).parser()
    return parser


@pytest.mark.parametrize("page", [page for page in PAGES if names(page) not in MADE], ids=names)
def test_every_command_shown_is_one_that_its_program_takes(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    if page.name == "LOG.md":
        pytest.skip("tells of what was typed then")
    for command in shown_commands.commands_of(page):
        refusal = refused(command) if "…" not in command.text else None
        assert refusal is None, f"{command.text}: {refusal}"


def refused(command: Shown) -> str | None:
    """Why the program or script that is named would not take what stands behind it; None: it would."""
    if command.program is None:
        return None
    program = ROOT / command.program
    if not program.is_file():
        return f"there is no {command.program}"
    if command.program.startswith(("pipeline/", "analysis/")):
        words = [re.sub(r"\$\w+", "1", word) for word in command.arguments]  # variables of the shell
        try:
            parser_of(command.program.removesuffix(".py").replace("/", ".")).parse_args(words)
        except SystemExit as end:
            return f"exit code {end.code}"
    return None


def test_make_targets_shown_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {target for line in targets for target in line.split()}
    for page in PAGES:
        shown = set(re.findall(r"(?:^    |`|FOLDER )make ([a-z-]+)", page.read_text(), re.MULTILINE))
        assert shown <= known, names(page)


def test_commands_by_example(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "See `python pipeline/study.py\nFILE` (so to say), and `query.py`:\n\n"
        "    C4=x python pipeline/query.py --results r \"\n        SELECT '#1'\"   # the reader's own\n"
        "    # folder\n    A=b python pipeline/no.py \\\n        --flag    # said\n"
    )
    shown = shown_commands.commands_of(page)
    assert [(one.program, one.arguments) for one in shown] == [
        ("pipeline/query.py", ["--results", "r", "\n    SELECT '#1'"]),
        ("pipeline/no.py", ["--flag"]),
        ("pipeline/study.py", ["FILE"]),
    ]
    assert [one.beside for one in shown] == ["# the reader's own # folder", "# said", "(so to say)"]
    assert shown[1].text == "A=b python pipeline/no.py --flag"
    assert refused(shown[1]) == "there is no pipeline/no.py"
