"""The synthetic results, written once for all tests of the analysis."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from synthetic_results import Truth, write_results

from analysis.read import read_sparse_losses, read_sparsity
from pipeline.results.read import read_artefact

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
def loss_differences(results: Path) -> pd.DataFrame:
    return read_artefact(results, "loss_differences")


@pytest.fixture(scope="session")
def sparse_context_losses(results: Path) -> pd.DataFrame:
    return read_sparse_losses(results)


@pytest.fixture(scope="session")
def dependency_sparsity(results: Path) -> pd.DataFrame:
    return read_sparsity(results)


@pytest.fixture
def ax() -> Iterator[plt.Axes]:
    figure, ax = plt.subplots()
    yield ax
    plt.close("all")
