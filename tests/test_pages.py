"""The pages: every link leads somewhere, and every program takes the commands that are shown."""

import importlib
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted(ROOT.rglob("*.md"))
    if not any(part.startswith(".") or part == "runs" for part in path.relative_to(ROOT).parts)
}
OF_COMMANDS = [name for name, path in PAGES.items() if path.name not in ("CHANGELOG.md", "LOG.md")]


def _without_fences(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """What a browser of the repository calls the headings: their words in lower case, joined by hyphens."""
    text = _without_fences(page)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in words}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(name: str) -> None:
    page = PAGES[name]
    text = _without_fences(page)
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "`code`", prose)):
        path, _, fragment = target.partition("#")
        if not re.match(r"\w+:", target):
            led_to = (page.parent / path).resolve() if path else page
            assert led_to.exists() and (not fragment or fragment in anchors(led_to)), target


_PROGRAM = re.compile(r"(?<!\S)((?:pipeline|analysis|slurm|tests)/[\w/]+\.(?:py|sh))\b")
_COMMENT = r"(?<!\S)\#[^\n]*"
_LINE = re.compile(
    rf"""(?:{_COMMENT}|\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^\\\n"'])++""", re.DOTALL | re.VERBOSE
)  # what a shell takes as one line: a backslash or a quote lets it go on
_PART = re.compile(rf"""({_COMMENT})|\\\n[ ]*|\\.|"(?:\\.|[^"\\])*"|'[^']*'|.""", re.DOTALL | re.VERBOSE)


def commands_of(page: Path) -> list[str]:
    """Commands in the indented code of a page, as a shell reads them: no comments, continued lines joined."""
    lines = _without_fences(page).splitlines()
    code = "\n".join(line.removeprefix("    ") if line.startswith("    ") else "" for line in lines)
    return [
        _PART.sub(lambda part: "" if part[1] or part[0].startswith("\\\n") else part[0], line)
        for line in _LINE.findall(code)
    ]


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_every_command_is_one_that_its_program_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for command in commands_of(PAGES[name]):
        found = _PROGRAM.search(command)
        if found is None or "…" in command:
            continue
        assert (ROOT / found[1]).is_file(), command
        if found[1].startswith(("pipeline/", "analysis/")) and found[1].endswith(".py"):
            words = shlex.split(re.sub(r"\$\w+", "1", command[found.end() :]))  # variables of the shell
            module = importlib.import_module(found[1].removesuffix(".py").replace("/", "."))
            try:
                module.parser().parse_args(words)
            except SystemExit as end:
                raise AssertionError(f"{command}: exit code {end.code}") from end
