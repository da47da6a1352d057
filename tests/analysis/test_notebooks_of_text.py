"""The notebooks that read the text or planted needles, executed from the command line."""

from pathlib import Path

import forked_stages
import pytest
from explorable_results import LOSSES_ONLY, write_explorable
from needle_results import write_needle_results

from pipeline.results.files import read_parquet
from pipeline.results.schemas import SCHEMAS

TEXTS = [
    "The old house of Mary stood by the old house of John, and it had 42 seats in 1990. " * 4,
    "A river runs north; the river runs past Rome and the river runs on, 7 days or 70. " * 4,
    "No one knew why the lamp was lit, and no one knew who had lit the lamp at night. " * 4,
]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notebooks")
    results, data = write_explorable(folder / "measured", TEXTS, models=["long-seed0"])
    words = [
        "--results", results, "--data", data,
        "--needles", write_needle_results(folder / "needles"), "--figures", folder / "figures",
        "--long-models", "long-seed0", "--short-models", LOSSES_ONLY,
        "--notebooks", "token_categories", "influential_places", "needles",
    ]  # fmt: skip
    done = forked_stages.run("analysis/run_notebooks.py", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "figures"


def test_each_notebook_leaves_figures_and_sentences(figures: Path) -> None:
    drawn = {"token_categories-long-seed0", "influential_places-long-seed0", "needle_retrieval"}
    drawn |= {"found_needles-copier"}
    for suffix in ("png", "pdf"):
        assert {path.stem for path in figures.glob(f"*.{suffix}")} == drawn
    for name, sentence in {
        "token_categories": "word_kind: largest for",
        "influential_places": "copy after predecessor: ",
        "needles": "the answer costs clearly less with the needle at 4 of 6 lengths and depths",
    }.items():
        text = (figures / f"{name}.ipynb").read_text()
        assert sentence in text
        assert "intervals of 95 % each" in text


def test_the_categories_are_written_for_sql(figures: Path) -> None:
    table = read_parquet(figures / "token_categories.parquet", SCHEMAS["token_categories"].names)
    assert table.num_rows > 0
