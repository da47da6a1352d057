"""The stage sparse_functional_attention: it learns, goes on, refuses, and its notebook runs."""

from pathlib import Path

import forked_stages
import pytest

from pipeline import sparse_functional_attention
from pipeline.cli import InputError
from pipeline.results.read import artefacts_in, read_artefact

SMALL = ["--train-context-length", "16", "--local-length", "4", "--num-test-sequences", "40"]


def measure(results: Path, *flags: str) -> None:
    arguments = ["--results", str(results), *SMALL, *flags]
    sparse_functional_attention.main(sparse_functional_attention.parser().parse_args(arguments))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("theory")
    conditions = ["--conditions", "local", "halves_trained_keys", "halves_coupled"]
    measure(results, *conditions, "--seeds", "0", "3", "--steps", "128")
    return results


def test_a_row_for_each_fit_step_and_length(results: Path) -> None:
    rows = read_artefact(results, "sparse_functional_attention")
    assert len(rows) == 3 * 2 * 5 * 8
    assert sorted(rows["model"].unique()) == ["halves_coupled-k2", "halves_trained_keys-k2", "local-k2"]
    assert sorted(rows["seed"].unique()) == [0, 3]
    assert sorted(rows["training_step"].unique()) == [8, 16, 32, 64, 128]
    assert sorted(rows["test_length"].unique()) == [8, 10, 12, 14, 16, 32, 64, 128]
    told = rows.groupby("model")[["position_law", "position_scheme", "key_reach"]].first()
    assert told.loc["halves_coupled-k2"].tolist() == ["halves", "coupled", 4]
    assert told.loc["halves_trained_keys-k2"].tolist() == ["halves", "contiguous", 16]


def test_what_the_theorems_speak_of_is_kept_and_the_rest_is_not(results: Path) -> None:
    errors = read_artefact(results, "sparse_functional_attention")
    at_step = errors.query("test_length == 16").groupby("training_step")["squared_error"].mean()
    assert at_step[8] > 10 * at_step[128]  # training lowers it
    rows = errors.query("training_step == 128")
    error = rows.groupby(["model", "test_length"])["squared_error"].max()
    for model in ("local-k2", "halves_coupled-k2"):
        assert error[model, 16] < 0.1
        assert error[model, 128] < 0.6
    assert error["halves_trained_keys-k2", 16] < 0.1
    assert error["halves_trained_keys-k2", 128] > 0.9


def test_an_interrupted_run_goes_on_to_the_same_bytes(results: Path, tmp_path: Path) -> None:
    flags = ["--conditions", "local", "--seeds", "0", "3", "--steps", "128"]
    measure(tmp_path, *flags)
    shards = sorted((tmp_path / "sparse_functional_attention/model=local-k2").iterdir())
    before = [shard.read_bytes() for shard in shards]
    shards[0].unlink()
    (tmp_path / "_stages/sparse_functional_attention/model=local-k2/00000-of-00002.done").unlink()
    kept = shards[1].stat().st_mtime_ns
    measure(tmp_path, *flags)
    assert [shard.read_bytes() for shard in shards] == before
    assert shards[1].stat().st_mtime_ns == kept
    first = results / "sparse_functional_attention/model=local-k2"
    assert [shard.read_bytes() for shard in sorted(first.iterdir())] == before


def test_bad_input_is_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    for flags, sentence in (
        ("--local-length 5", "--train-context-length 16, --local-length 5: L is a multiple of 4, and the"),
        ("--sparsity 3 --local-length 2", "--local-length 2: .* k <= L_local <= L/4"),
        ("--train-context-length 30", "--train-context-length 30, .* multiple of 4"),
        ("--sparsity 3 --conditions local uniform_all_keys", "k = 3 with keys that reach 128"),
    ):
        with pytest.raises(InputError, match=sentence):
            measure(tmp_path / "results", "--steps", "1", *flags.split())
        assert artefacts_in(tmp_path / "results") == [], flags


def test_another_configuration_is_refused(results: Path) -> None:
    with pytest.raises(InputError, match="num_steps was 128, now 65"):
        measure(results, "--conditions", "local", "--seeds", "0", "3", "--steps", "65")


@pytest.mark.slow
def test_the_notebook_runs(results: Path, tmp_path: Path) -> None:
    words = ["--results", results, "--figures", tmp_path, "--notebooks", "sparse_functional_attention"]
    done = forked_stages.run("analysis/run_notebooks.py", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sparse_functional_attention.png").exists()
