"""The synthetic results, written once for all tests of the analysis."""

from pathlib import Path

import matplotlib
import pytest
from written_results import write_results

matplotlib.use("agg")


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("demo") / "results")
