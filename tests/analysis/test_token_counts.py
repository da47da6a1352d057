"""Counts of training tokens, of data that was really measured and of data that was not."""

from pathlib import Path

import numpy as np
import pytest
from explorable_results import write_explorable

from analysis.tokens.kinds import training_token_counts
from pipeline.cli import InputError

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    "one two three four five six seven eight nine ten " * 8,
    "red green blue yellow black white pink " * 10,
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_explorable(tmp_path_factory.mktemp("counted"), TEXTS)


def test_data_without_training_tokens_and_other_data_are_refused(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    results, data = folders
    with pytest.raises(InputError, match="no training tokens"):
        training_token_counts(results, data)
    _, other = write_explorable(tmp_path, [text.upper() for text in TEXTS])
    with pytest.raises(InputError, match="were not measured on the evaluation documents of .*--data"):
        training_token_counts(results, other)
    with pytest.raises(InputError, match="no tokenized data"):
        training_token_counts(results, tmp_path / "nowhere")


def test_without_data_there_are_no_counts(results: Path) -> None:
    assert training_token_counts(results, None) is None
    # The kept results have a table beside them that was once made of the text, and no text.
    kept = ROOT / "analysis" / "reference" / "study" / "results"
    assert (kept.parent / "data").is_dir()
    assert training_token_counts(kept, None) is None


def test_data_beside_the_results_is_counted(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    results, data = folders
    counted = []

    def of_training_tokens(tokenized: object) -> object:
        counted.append(tokenized.folder)
        return type("Counts", (), {"counts_V": np.array([3, 1])})

    monkeypatch.setattr("analysis.tokens.kinds.UnigramDistribution.of_training_tokens", of_training_tokens)
    np.testing.assert_array_equal(training_token_counts(results, None), [3, 1])
    assert counted == [data]
