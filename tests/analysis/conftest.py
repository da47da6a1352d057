"""The synthetic results, written once for all tests of the analysis."""

from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from synthetic_results import LONG_MODELS, Truth, write_results

from sparsity_length.figures.read import read_sparse_losses

matplotlib.use("agg")


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    results = tmp_path_factory.mktemp("demo") / "results"
    return results, write_results(results)


@pytest.fixture(scope="session")
def results(planted: tuple[Path, Truth]) -> Path:
    return planted[0]


@pytest.fixture(scope="session")
def truth(planted: tuple[Path, Truth]) -> Truth:
    return planted[1]


@pytest.fixture(scope="session")
def scales(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth, Truth]:
    """Results that say how their models were trained: two sizes, and the smaller at an earlier step."""
    folder = tmp_path_factory.mktemp("scales")
    smaller = write_results(folder / "small", scale=(1_000_000, 400))
    larger = write_results(folder / "large", 21, seed=1, scale=(3_000_000, 400))
    write_results(folder / "early", seed=2, scale=(1_000_000, 100), models=LONG_MODELS)
    return folder, smaller, larger


@pytest.fixture(scope="session")
def sparse_context_losses(results: Path) -> pd.DataFrame:
    return read_sparse_losses(results)
