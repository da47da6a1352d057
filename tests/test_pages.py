"""The pages: every link leads somewhere, every program takes the commands that are shown, and they run.

All commands run at small size (commands_at_small_size.py) in one folder, as a reader would have them: the
demo's stages first, then page by page. They are slow: `make test-all` runs them.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from commands_at_small_size import MODEL, PYTHON_ELSEWHERE, how, run, texts_and_models
from shown_commands import ROOT, UNMARKED, Shown, commands_of, python_of

from sparsity_length.cli import InputError, stage_of

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


def complaint(shown: Shown) -> str | None:
    """Why a command of a page is none, or why nobody would notice that it fails; None: all is well."""
    if how(shown) is None:
        return "no test runs it; NOT_RUN of commands_at_small_size.py says of which others that is right"
    if shown.program is None or "…" in shown.text:
        return None
    if not (ROOT / shown.program).is_file():
        return f"there is no {shown.program}"
    if shown.program.startswith(("pipeline/", "analysis/")):
        words = [re.sub(r"\$\w+", "1", word) for word in shown.arguments]  # variables of the shell
        try:
            stage_of(Path(shown.program).stem).parse(words)
        except (InputError, SystemExit) as end:
            return str(end)
    return None


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_every_command_is_one_that_its_program_takes_and_a_test_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for shown in commands_of(PAGES[name]):
        assert complaint(shown) is None, f"{shown.text}: {complaint(shown)}"


def test_bad_commands_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Type `pip install x`, and `python pipeline/no.py`:\n\n"
        "    A=b python pipeline/query.py --results r \"\n        SELECT '#1'\"   # the reader's own\n"
        "    make cake\n    python pipeline/query.py \\\n        --flag\n"
    )
    shown = commands_of(page)
    assert [one.text for one in shown] == [
        "A=b python pipeline/query.py --results r \"\n    SELECT '#1'\"",
        "make cake",
        "python pipeline/query.py --flag",
        "pip install x",
        "python pipeline/no.py",
    ]
    assert [complaint(one) is None for one in shown] == [True, False, False, True, False]


def run_of(name: str, shown: Shown, folder: Path) -> None:
    """Run a command of a page; where that fails, say which it was."""
    try:
        run(shown, folder)
    except (Exception, SystemExit) as error:
        raise AssertionError(f"{name} shows `{shown.text}`, which fails: {error}") from error


@pytest.fixture(scope="module")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that runs the commands of a page that are not slow, once; it returns the folder of all."""
    folder = tmp_path_factory.mktemp("pages")
    texts_and_models(folder)
    have_run = set()

    def run_all(name: str, commands: list[Shown]) -> None:
        for shown in commands:
            if shown.text not in have_run and how(shown) == "here":
                run_of(name, shown, folder)
            have_run.add(shown.text)

    run_all("pipeline/README.md", commands_of(PAGES["pipeline/README.md"], "The stages by hand"))

    @cache
    def page(name: str) -> Path:
        run_all(name, commands_of(PAGES[name]))
        return folder

    return page


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_COMMANDS)
def test_the_commands_and_the_python_of_a_page_run(
    name: str, run_page: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_page(name)
    monkeypatch.chdir(folder)
    for code in python_of(PAGES[name]) if name not in PYTHON_ELSEWHERE else []:
        small = code.replace("HuggingFaceTB/SmolLM2-135M", MODEL).replace("(8, 32, 128, 512)", "(4, 8, 16)")
        exec(small.replace("The text …", (folder / "letter.txt").read_text()), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_COMMANDS)
def test_the_long_commands_of_a_page_run(name: str, run_page: Callable[[str], Path]) -> None:
    folder = run_page(name)
    for shown in commands_of(PAGES[name]):
        if how(shown) == "at length":
            run_of(name, shown, folder)


@pytest.mark.slow
def test_the_recipes_lead_to_what_they_say(run_page: Callable[[str], Path]) -> None:
    folder = run_page("pipeline/RECIPES.md")
    mine = folder / "runs" / "mine"
    header, *rows = (mine / "ranked.csv").read_text().splitlines()
    gains = [float(row.split(",")[2]) for row in rows]
    assert header == "document_id,targets,gain_nats"
    assert len(gains) == 5 and gains == sorted(gains, reverse=True)
    assert MODEL in (mine / "explorer.html").read_text()
    assert (folder / "explained.html").is_file()
    assert list((mine / f"rules/sparse_context_losses/{MODEL}").glob("*.parquet"))
