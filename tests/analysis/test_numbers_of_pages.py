"""Every marked number, table and verdict of the pages is that of the kept results."""

from pathlib import Path

import pytest

from sparsity_length.figures import pages


@pytest.mark.slow
@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.parent.name + page.name)
def test_every_page_holds_what_the_kept_results_say(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert pages.fill(text) == text, "python -m sparsity_length.figures.pages"
