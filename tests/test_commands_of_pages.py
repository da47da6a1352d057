"""Every command of every page is run at small size, or the page says beside it why not.

All run in one folder, as a reader would have them: the demo's stages first, then page by page. How they
become small, and which of them another test runs, stands in commands_at_small_size.py. What takes minutes
even so is slow: `make test-all` runs it.
"""

import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from commands_at_small_size import (
    ELSEWHERE,
    MODEL,
    PYTHON_ELSEWHERE,
    RUN_BY,
    STUDIES,
    how,
    run,
    texts_and_models,
)
from shown_commands import ROOT, UNMARKED, Shown, commands_of, python_of

from pipeline.studies.file import SyntheticStudy, load_study

PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted(ROOT.rglob("*.md"))
    if not any(part.startswith(".") or part == "runs" for part in path.relative_to(ROOT).parts)
    and path.name not in UNMARKED
}
KINDS = ROOT / "analysis/reference/study/data/token_categories.parquet"
STAGES = commands_of(PAGES["pipeline/README.md"], "The stages by hand")


def complaints(name: str, page: Path) -> list[str]:
    """A sentence for each command of a page that no test runs, and that is not said to be so."""
    return [
        f"{name} shows `{shown.text}`: no test runs it, and nothing beside it says `not run by tests: why`"
        for shown in commands_of(page)
        if how(shown) is None
    ]


@pytest.mark.parametrize("name", PAGES)
def test_every_command_is_run_or_is_said_not_to_be(name: str) -> None:
    assert complaints(name, PAGES[name]) == []


def test_commands_that_nobody_runs_are_refused_by_example(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    run_here = "    python pipeline/query.py --results r\n    OPTIONS=--dry-run make demo\n"
    said = "    hf download x  # not run by tests: no network\n    make golden\n    # not run by tests: y\n"
    in_a_sentence = "Type `pip install x` (not run by tests: no network), and `make test-gpu` as well.\n"
    nobody = ["make cake", "rm -r runs", "python pipeline/no.py", "python pipeline/query.py …"]
    nobody.append("hf download y")
    page.write_text(
        f"{run_here}{said}\n{in_a_sentence}\n"
        + "".join(f"    {text}\n" for text in nobody[:-1])
        + "    hf download y  # not run by tests:\n\n```text\nno command\n```\n"
    )
    assert complaints("page.md", page) == [
        f"page.md shows `{text}`: no test runs it, and nothing beside it says `not run by tests: why`"
        for text in [*nobody, "make test-gpu"]
    ]


def test_a_command_that_fails_is_named_with_its_page(tmp_path: Path) -> None:
    (command,) = commands_of(_page(tmp_path, "    python pipeline/query.py --results 'no results' # said\n"))
    with pytest.raises(AssertionError, match="^page.md shows `.* 'no results'`, which fails: .*no results"):
        run_of("page.md", command, tmp_path)


def _page(folder: Path, text: str) -> Path:
    (folder / "page.md").write_text(text)
    return folder / "page.md"


def test_what_is_run_elsewhere_is_shown_and_its_test_is_there() -> None:
    shown = {command.text for page in PAGES.values() for command in commands_of(page)}
    assert shown >= ELSEWHERE
    assert all(python_of(PAGES[name]) for name in PYTHON_ELSEWHERE)
    for node in [*RUN_BY, *PYTHON_ELSEWHERE.values()]:
        file, _, name = node.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), node


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_is_run_is_small(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("C4", "folder")
    study = load_study(ROOT / f"olmo_configs/studies/{name}.yaml", STUDIES[name])
    if isinstance(study, SyntheticStudy):
        assert all("num_steps=6" in grid.overrides for grid in study.synthetic.grids.values() if grid)
    else:
        assert all(str(size.max_duration) == "4" for size in study.sizes.values())


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

    run_all("pipeline/README.md", STAGES)
    # What a notebook would write, which runs where slow tests do.
    (folder / "runs/demo/figures").mkdir(exist_ok=True)
    shutil.copy(ROOT / "analysis/reference/study/data/token_categories.parquet", folder / "runs/demo/figures")

    @cache
    def page(name: str) -> Path:
        run_all(name, commands_of(PAGES[name]))
        return folder

    return page


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_run(name: str, run_page: Callable[[str], Path]) -> None:
    run_page(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_long_commands_of_a_page_run(name: str, run_page: Callable[[str], Path]) -> None:
    folder = run_page(name)
    for shown in commands_of(PAGES[name]):
        if how(shown) == "at length":
            run_of(name, shown, folder)


@pytest.mark.parametrize("name", [name for name in PAGES if python_of(PAGES[name])])
def test_the_python_of_a_page_runs(
    name: str, run_page: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in PYTHON_ELSEWHERE:
        return
    folder = run_page(name)
    monkeypatch.chdir(folder)
    for code in python_of(PAGES[name]):
        small = code.replace("EleutherAI/pythia-160m", MODEL)
        exec(small.replace("The text …", (folder / "letter.txt").read_text()), {})


def test_the_recipes_lead_to_what_they_say(
    run_page: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_page("pipeline/RECIPES.md")
    mine = folder / "runs" / "mine"
    header, *rows = (mine / "ranked.csv").read_text().splitlines()
    gains = [float(row.split(",")[2]) for row in rows]
    assert header == "document_id,targets,gain_nats"
    assert len(gains) == 3 and gains == sorted(gains, reverse=True)
    assert MODEL in (mine / "explorer.html").read_text()
    assert (folder / "explained.html").is_file()
    assert list((mine / f"rules/sparse_context_losses/model={MODEL}").glob("*.parquet"))
    asked = {command.text: command for command in commands_of(PAGES["pipeline/RECIPES.md"])}
    for words in ("summary.py --results runs/mine", "AS long_perplexity", "SELECT depth"):
        (command,) = (command for text, command in asked.items() if words in text)
        capsys.readouterr()
        run(command, folder)
        assert {"SELECT depth": "depth", "AS long_perplexity": "long_perplexity"}.get(words, MODEL) in (
            capsys.readouterr().out
        )
