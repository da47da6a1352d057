"""What the measuring stages share: documents taken or skipped, folders resumed or refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from measured_documents import contents, measure, write_checkpoint, write_data
from olmo.model import OLMo

from pipeline import influential_tokens, length_losses, loss_differences
from pipeline.cli import InputError
from pipeline.measuring import stage as evaluate_checkpoints
from pipeline.results.read import read_artefact


@pytest.fixture
def folder(tmp_path: Path, make_olmo: Callable[..., OLMo]) -> Path:
    write_data(tmp_path / "data")
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    return tmp_path


def test_documents_too_short_are_skipped_and_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="pipeline"):
        results = measure(loss_differences, folder, "--max-documents", "2")
    assert "1 of 4 documents are shorter than 12 tokens and are skipped" in caplog.text
    rows = read_artefact(results, "loss_differences")  # of the first two that are long enough
    assert rows["document_id"].unique().tolist() == ["00000000000000aa", "00000000000000bb"]


def test_fewer_than_two_documents_are_refused(folder: Path) -> None:
    for flags, sentence in (
        (["--long-context-length", "14"], r"^1 evaluation document\(s\) of at least 14 tokens"),
        (["--max-documents", "1"], r"^1 evaluation document\(s\).* or a larger --max-documents$"),
    ):
        with pytest.raises(InputError, match=sentence):
            measure(loss_differences, folder, *flags)
        assert not (folder / "results").exists(), flags


def test_other_settings_are_refused_by_name(folder: Path) -> None:
    before = contents(measure(influential_tokens, folder, "--rules", "nearest"))
    for flags, change in (
        ("--short-context-length 3", "short_context_length was 4, now 3"),
        ("--documents-per-shard 1", "documents_per_shard was 32, now 1; num_shards was 1, now 3"),
        ("--rules random nearest", r"rules was \['nearest'\], now \['random', 'nearest'\]"),
    ):
        with pytest.raises(InputError, match=f"made with other settings: {change}; choose another --results"):
            measure(influential_tokens, folder, "--rules", "nearest", *flags.split())
        assert contents(folder / "results") == before, flags


def test_other_weights_under_the_same_name_are_refused(folder: Path, make_olmo: Callable[..., OLMo]) -> None:
    measure(length_losses, folder)
    write_checkpoint(folder / "run", make_olmo(seed=2))
    with pytest.raises(InputError, match="length_losses of model 'run', and that is another model than"):
        measure(length_losses, folder)


def test_complete_results_are_not_computed_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measure(influential_tokens, folder)
    before = {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("*")}

    def refuse_to_load(*arguments: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(evaluate_checkpoints, "load_causal_lm", refuse_to_load)
    with caplog.at_level("INFO", logger="pipeline"):
        measure(influential_tokens, folder)
    assert "of model 'run' is complete in" in caplog.text
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "results").rglob("*")}
