"""The benchmark of methods: its table by hand, its order, and the program on what a tiny run leaves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible
from measured_documents import measure, write_checkpoint, write_data
from olmo.model import OLMo
from written_results import write_tables

from analysis import methods as program
from analysis.rules.benchmark import methods_figure, methods_table
from pipeline import influential_tokens
from pipeline.results.files import read_parquet

SETTINGS = {
    "short_context_length": 2, "long_context_length": 20, "targets_per_chunk": 1, "k": [1, 4],
    "intervention": "background", "num_backgrounds": 2, "num_subsets": None,
}  # fmt: skip
DOCUMENTS = ["a", "b", "c"]
# rule -> nats by the divergence that 1 and 4 tokens recover, own and of the null; by the loss half of that
RECOVERED = {
    "surrogate": ((0.6, 0.8), (0.2, 0.5)),
    "attention": ((0.2, 0.4), (-0.5, -0.5)),
    "add_one_in_divergence": ((0.7, 0.9), (0.1, 0.2)),
}


def _losses(rule: str, judge: str, share: float) -> list[dict[str, Any]]:
    return [
        {
            "document_id": document, "chunk_index": 0, "target_position": 19, "rule": rule, "judge": judge,
            "far_context": far_context, "null_kind": None, "k": k, "short_context_loss": 4.0,
            "background_loss": 4.0, "long_context_loss": 3.0,
            "sparse_context_loss": 4.0 - share * recovered / 2,
            "short_context_divergence": 1.0, "background_divergence": 1.0,
            "sparse_context_divergence": 1.0 - share * recovered,
        }
        for far_context, of_k in zip(("own", "other_document"), RECOVERED[rule], strict=True)
        for k, recovered in zip((1, 4), of_k, strict=True)
        for document in DOCUMENTS
    ]  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        row
        for rule in RECOVERED
        for judge, share in (("seed0", 1.0), ("seed1", 0.5))
        for row in _losses(rule, judge, share)
    ]
    folder = tmp_path_factory.mktemp("methods") / "results"
    write_tables(folder, "influential_tokens", "seed0", SETTINGS, {"sparse_context_losses": rows})
    return folder


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two dependencies surrogate finds one, and in a background both; attention none."""
    found = {("surrogate", "remove"): [1, 0, 1], ("surrogate", "background"): [1, 1, 0],
             ("attention", None): [0, 0, 1]}  # fmt: skip
    rows = [
        {
            "task": "t", "positions": "pose", "seed": 0, "largest_train_size": 9,
            "largest_train_sparsity": None,
            "is_learnt": is_learnt, "size": 9, "sparsity": None, "example_index": example, "target_index": 0,
            "num_far_tokens": 7, "num_dependencies": 2, "long_context_loss": 0.1, "rule": rule,
            "intervention": intervention, "rank": rank, "context_position": rank, "context_token": "x",
            # a model that has not learnt the task tells nothing
            "is_dependency": bool(of_ranks[rank - 1]) if is_learnt else False,
        }
        for (rule, intervention), of_ranks in found.items()
        for is_learnt in (True, False)
        for example in range(3)
        for rank in (1, 2, 3)
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("methods") / "synthetic"
    write_tables(folder, "found_dependencies", "seed0", {}, {"found_dependencies": rows})
    return folder


def test_effects_are_beyond_the_null_that_fits_and_the_best_stands_first(text: Path) -> None:
    table = methods_table([text])
    assert table["rule"].tolist() == ["add_one_in_divergence"] * 2 + ["attention"] * 2 + ["surrogate"] * 2
    of_4 = table[table["k"] == 4].set_index("rule")
    # what attention chose fits nothing: its own recovery counts, which foreign tokens would flatter
    expected = {"add_one_in_divergence": 0.7, "attention": 0.4, "surrogate": 0.3}
    for rule, effect in expected.items():
        row = of_4.loc[rule]
        assert row["divergence_effect"] == pytest.approx(effect, abs=1e-6)
        assert row["loss_effect"] == pytest.approx(effect / 2, abs=1e-6)
        assert row["divergence_effect_low"] == pytest.approx(effect, abs=1e-6)  # documents are alike
    assert of_4["sees"].to_dict() == {
        "add_one_in_divergence": "prediction", "attention": "attention", "surrogate": "answer",
    }  # fmt: skip
    assert set(table["intervention"]) == {"background"} and set(table["num_documents"]) == {3}
    assert table[["found_dependencies", "found_signs", "seconds_per_target"]].isna().all(axis=None)
    # of 19 rows of a packed sequence, in each of 2 backgrounds: 64 subsets
    assert of_4.loc["surrogate", "token_forwards_per_target"] == 2 * 64 * 19


def test_how_far_behind_the_first_is_paired_by_target(text: Path) -> None:
    behind = methods_table([text]).set_index(["rule", "k"])[["behind_first", "behind_first_low"]]
    expected = {  # the first at 4 tokens is compared at every k
        ("add_one_in_divergence", 1): 0.0, ("attention", 1): 0.4, ("surrogate", 1): 0.2,
        ("add_one_in_divergence", 4): 0.0, ("attention", 4): 0.3, ("surrogate", 4): 0.4,
    }  # fmt: skip
    for key, nats in expected.items():
        assert behind.loc[key].tolist() == pytest.approx([nats, nats], abs=1e-6)


def test_what_is_found_of_the_truth_and_what_it_takes(text: Path, synthetic: Path) -> None:
    table = methods_table([text], synthetic=synthetic, seconds={"surrogate": 0.25})
    of_rule = table.drop_duplicates("rule").set_index("rule")
    assert of_rule.loc["surrogate", "found_dependencies"] == 1.0  # in a background, as the text was measured
    assert of_rule.loc["attention", "found_dependencies"] == 0.0  # whose choice knows no intervention
    assert np.isnan(of_rule.loc["add_one_in_divergence", "found_dependencies"])
    assert of_rule["seconds_per_target"].dropna().to_dict() == {"surrogate": 0.25}


def test_both_kinds_of_truth_stand_in_one_panel(text: Path, synthetic: Path) -> None:
    table = methods_table([text], synthetic=synthetic)
    signs = {name: 0.5 for name in ("found_signs", "found_signs_low", "found_signs_high")}
    figure = methods_figure(table.assign(**signs))
    assert len(figure.axes) == 2
    assert figure.axes[1].get_xlabel() == "share found of planted signs\n(grey: of synthetic tokens)"
    assert len(figure.axes[1].containers) == 3 + 2  # signs of every method, synthetic tokens of two
    assert_legible(figure)
    (worth,) = methods_figure(methods_table([text])).axes  # where no truth is known
    assert worth.get_xlabel() == "worth of 4 tokens\nto the prediction (nats)"


@pytest.mark.slow
def test_the_program_on_a_tiny_run(
    tmp_path: Path, make_olmo: Callable[..., OLMo], capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path / "data", train_token_ids=[np.arange(1, 47).tolist()])
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    words = ["--rules", "surrogate", "attention_rollout", "learned_attention", "nearest", "--k", "1", "4"]
    words += ["--learning-chunks", "2", "--num-subsets", "8"]
    measure(influential_tokens, tmp_path, *words, "--intervention", "background")
    measure(influential_tokens, tmp_path, *words, "--results", str(tmp_path / "removed" / "results"))
    run = ["--run", str(tmp_path), "--figures", str(tmp_path / "figures")]
    program.main(program.parser().parse_args(run))
    shown, said = capsys.readouterr()
    assert "glyph" not in said
    assert shown.count("learned_attention ") == 2 and "by the divergence" in shown
    table = read_parquet(tmp_path / "figures" / "methods.parquet").to_pandas()
    assert len(table) == 2 * (3 * 2 + 2)  # two interventions; nearest at 1 and 4 too
    assert {path.name for path in (tmp_path / "figures").glob("*.png")} == {
        "methods-background.png", "methods-remove.png",
    }  # fmt: skip
    assert isinstance(table, pd.DataFrame) and table["divergence_effect"].notna().all()
