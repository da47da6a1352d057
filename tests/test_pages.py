"""The pages: every link leads somewhere, and every program takes the commands that are shown."""

import importlib
import re
from functools import cache
from pathlib import Path

import pytest
from shown_commands import ROOT, UNMARKED, commands_of

PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted(ROOT.rglob("*.md"))
    if not any(part.startswith(".") or part == "runs" for part in path.relative_to(ROOT).parts)
}
OF_COMMANDS = [name for name, path in PAGES.items() if path.name not in UNMARKED]


@cache
def anchors(page: Path) -> set[str]:
    """What a browser of the repository calls the headings: their words in lower case, joined by hyphens."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in words}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(name: str) -> None:
    page = PAGES[name]
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "`code`", prose)):
        path, _, fragment = target.partition("#")
        if not re.match(r"\w+:", target):
            led_to = (page.parent / path).resolve() if path else page
            assert led_to.exists() and (not fragment or fragment in anchors(led_to)), target


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_every_command_is_one_that_its_program_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for shown in commands_of(PAGES[name]):
        if shown.program is None or "…" in shown.text:
            continue
        assert (ROOT / shown.program).is_file(), shown.text
        if shown.program.startswith(("pipeline/", "analysis/")):
            words = [re.sub(r"\$\w+", "1", word) for word in shown.arguments]  # variables of the shell
            module = importlib.import_module(shown.program.removesuffix(".py").replace("/", "."))
            try:
                module.parser().parse_args(words)
            except SystemExit as end:
                raise AssertionError(f"{shown.text}: exit code {end.code}") from end
