"""The synthetic results, written once for all tests of the analysis."""

from pathlib import Path

import matplotlib
import pytest
from synthetic_results import write_results

matplotlib.use("agg")


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results that do not say how their models were trained."""
    return write_results(tmp_path_factory.mktemp("demo") / "results")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results that say how their models were trained."""
    return write_results(tmp_path_factory.mktemp("trained") / "results", tells_training=True)
