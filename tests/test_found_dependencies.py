"""The stage that asks synthetic models which tokens decide, as a user runs it."""

import hashlib
from pathlib import Path

import pandas as pd
import pytest
from test_train_synthetic import train

from pipeline import found_dependencies
from pipeline.cli import InputError
from pipeline.results.read import read_artefact
from pipeline.synthetic.evaluation import of_test_examples
from pipeline.synthetic.tasks import draw_batch, task_called

SHORT_CONTEXT_LENGTH = 2


def measure(folder: Path, results: Path, task: str, *words: str) -> None:
    given = ["--task", task, "--checkpoints", str(folder), "--results", str(results), "--num-examples", "3",
             "--short-context-length", str(SHORT_CONTEXT_LENGTH), "--num-backgrounds", "2"]  # fmt: skip
    found_dependencies.main(found_dependencies.parser().parse_args([*given, *words]))


def fingerprints(results: Path) -> dict[str, str]:
    files = sorted((results / "found_dependencies").rglob("*.parquet"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finding") / "variable_assignment-predicted-seed0"
    train(folder, task="variable_assignment")
    return folder


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finding") / "sparse_parity-pose-seed0"
    train(folder, "largest_sparsity=2", "num_position_ids=40", task="sparse_parity", positions="pose")
    return folder


def test_rows_hold_the_generators_truth(chains: Path, tmp_path: Path) -> None:
    measure(chains, tmp_path, "variable_assignment", "--sizes", "4", "5", "--largest-k", "12")
    rows = read_artefact(tmp_path, "found_dependencies")
    assert set(rows["size"]) == {4, 5} and set(rows["positions"]) == {"predicted"}
    for size in (4, 5):
        generator = of_test_examples(0, size, None)
        batch = draw_batch(task_called("variable_assignment"), size, [None] * 3, generator)
        of_size = rows[rows["size"] == size]
        for (example, target), of_target in of_size.groupby(["example_index", "target_index"]):
            num_far = batch.num_prompt_tokens + target - SHORT_CONTEXT_LENGTH
            truth = {place for place in batch.examples[example].dependencies[target] if place < num_far}
            assert set(of_target["num_dependencies"]) == {len(truth)}
            assert set(of_target["num_far_tokens"]) == {num_far}
            assert (of_target["context_position"] < num_far).all()
            assert of_target["is_dependency"].equals(of_target["context_position"].isin(truth))
        # of each restated assignment only the last token depends on what is far
        assert set(of_size["target_index"] % 3) == {2}


def test_every_selection_is_ranked_without_repeats(parity: Path, tmp_path: Path) -> None:
    measure(parity, tmp_path, "sparse_parity", "--sizes", "10", "--sparsities", "1", "2", "--largest-k", "8")
    rows = read_artefact(tmp_path, "found_dependencies").fillna({"intervention": "-"})
    keys = ["sparsity", "example_index", "target_index", "rule", "intervention"]
    selections = rows.groupby(keys)
    assert len(selections) == 2 * 3 * 10  # two k, three examples, ten rules and interventions
    assert (selections["rank"].apply(list) == pd.Series([[*range(1, 9)]] * len(selections)).values).all()
    assert (selections["context_position"].nunique() == 8).all()
    # 2 l = 10: of 8 far tokens every one is ranked, so all true dependencies are among them
    assert (selections["is_dependency"].sum() == selections["num_dependencies"].first()).all()
    assert set(rows["context_token"]) == {"0", "1", ".", "*"}


def test_a_lost_shard_is_made_again_to_the_same_bytes(parity: Path, tmp_path: Path) -> None:
    words = ["--sizes", "10", "--sparsities", "1", "2", "--largest-k", "4"]
    measure(parity, tmp_path, "sparse_parity", *words)
    before = fingerprints(tmp_path)
    assert len(before) == 2
    next((tmp_path / "_stages").rglob("00001-of-00002.done")).unlink()
    next((tmp_path / "found_dependencies").rglob("00001-of-00002.parquet")).unlink()
    measure(parity, tmp_path, "sparse_parity", *words)
    assert fingerprints(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--largest-k", "9"], "--largest-k 9: an answer of .* and the first answer 8 tokens to select from"),
        (["--short-context-length", "10"], "leaves no far context"),
        (["--sparsities", "6"], "k is at most 5 at --sizes 10"),
        (["--sparsities", "1", "2", "--largest-k", "3"], "--largest-k 3: an answer of .* has 4 true dep"),
        (["--head", "position_ids"], "positions 'pose' and predicts no IDs"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    parity: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    given = ["--sizes", "10", "--sparsities", "1", "--largest-k", "4"]
    with pytest.raises(InputError, match=sentence):
        measure(parity, tmp_path / "results", "sparse_parity", *given, *words)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("test_seed", "sentence"),
    [
        # With 7 tokens seen anyway both sides of a restated assignment may be near.
        ("2", "no answer of the test examples of size 2 depends on its far context; choose larger --sizes"),
        ("0", "has 2 true dependencies in its far context, and the first answer 1 tokens to select from"),
    ],
)
def test_examples_that_cannot_be_judged_are_refused(
    chains: Path, tmp_path: Path, test_seed: str, sentence: str
) -> None:
    words = ["--sizes", "2", "--largest-k", "1", "--short-context-length", "7", "--num-examples", "1"]
    with pytest.raises(InputError, match=sentence):
        measure(chains, tmp_path / "results", "variable_assignment", *words, "--test-seed", test_seed)
    assert not (tmp_path / "results").exists()


def test_rules_that_look_inside_are_asked_once_whatever_the_intervention(
    parity: Path, tmp_path: Path
) -> None:
    words = "--sizes 10 --sparsities 2 --largest-k 4 --interventions remove background".split()  # noqa: SIM905
    rules = ["attention", "attention_rollout", "gradient", "add_one_in"]
    measure(parity, tmp_path, "sparse_parity", *words, "--rules", *rules)
    rows = read_artefact(tmp_path, "found_dependencies")
    asked = rows.fillna({"intervention": "-"}).groupby("rule")["intervention"].agg(set).to_dict()
    once = dict.fromkeys(rules[:3], {"-"})
    assert asked == {**once, "add_one_in": {"remove", "background"}}


def test_what_predicted_ids_depend_on_is_asked_of_the_head_of_ids(chains: Path, tmp_path: Path) -> None:
    words = ["--sizes", "4", "--largest-k", "6", "--head", "position_ids", "--rules", "leave_one_out",
             "gradient_divergence", "attention"]  # fmt: skip
    measure(chains, tmp_path, "variable_assignment", *words)
    measure(chains, tmp_path, "variable_assignment", "--sizes", "4", "--largest-k", "6")  # beside it
    rows = read_artefact(tmp_path, "found_id_dependencies")
    generator = of_test_examples(0, 4, None)
    batch = draw_batch(task_called("variable_assignment"), 4, [None] * 3, generator)
    for (example, target), of_target in rows.groupby(["example_index", "target_index"]):
        ids = batch.coupled_ids_BS[example]
        wanted = ids[batch.num_prompt_tokens + target]
        found = of_target.loc[of_target["is_dependency"], "context_position"]
        assert (ids[found] == wanted).all()
        assert set(of_target["num_dependencies"]) == {1}
        assert (of_target["context_token"].str.len() > 0).all()
    # IDs of this run are spread, so that none can be counted on from the one before it
    assert set(rows["target_index"] % 3) == {0, 1, 2}
    assert len(read_artefact(tmp_path, "found_dependencies")) > 0
