"""Rows of the stages: counted, recomputed, against the naive witness; evaluators, rules, swapped contexts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from measured_documents import (
    LONG,
    SHORT,
    TARGET_POSITIONS,
    chunk_of,
    measure,
    with_far,
    write_checkpoint,
    write_data,
)
from naive_predictions import Case, log_probs, naive_divergences, naive_losses, stock_olmo
from olmo.model import OLMo
from sparsity_length.programs import evaluate_tokens, influential_tokens, loss_differences

from sparsity_length.cli import InputError
from sparsity_length.measuring.rules import RULES
from sparsity_length.measuring.settings import ByLength
from sparsity_length.results.read import Results

TARGET = ["document_id", "chunk_index", "target_position"]
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def models(make_olmo: Callable[..., OLMo]) -> dict[str, OLMo]:
    return {"run": make_olmo(seed=1), "other": make_olmo(seed=2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, models: dict[str, OLMo]) -> Path:
    folder = tmp_path_factory.mktemp("side_by_side")
    write_data(folder / "data")
    for name, model in models.items():
        write_checkpoint(folder / name, model)
    return folder


def test_an_evaluator_with_the_selector_s_weights_finds_its_very_numbers(
    folder: Path, models: dict[str, OLMo], tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "twin", models["run"])
    rules = ["--rules", "leave_one_out", "random", "greedy", "recency", "--k", "1", "3"]
    results = measure(influential_tokens, folder, *rules, "--results", str(tmp_path / "results"))
    words = ["--choices", str(results), "--results", str(results), "--checkpoints", str(tmp_path / "twin")]
    measure(evaluate_tokens, folder, *words)
    for artefact in ("sparse_context_losses", "dependency_sparsity"):
        rows = Results(results).frame(artefact)
        own, twin = (
            rows[rows["evaluator"] == evaluator].drop(columns="evaluator") for evaluator in ("run", "twin")
        )
        key = [name for name in (*TARGET, "rule", "distant_context", "k", "criterion") if name in rows]
        own, twin = (one.sort_values(key, ignore_index=True) for one in (own, twin))
        pd.testing.assert_frame_equal(own, twin, check_exact=True)


def test_foreign_contexts(folder: Path, models: dict[str, OLMo]) -> None:
    names = [str(folder / name) for name in models]
    rows = Results(measure(loss_differences, folder, "--checkpoints", *names)).frame("loss_differences")
    assert len(rows) == 2 * 12
    gains = rows["swapped_context_loss"] - rows["long_context_loss"]
    np.testing.assert_array_equal(rows["document_specific_gain"], gains)
    for row in rows.itertuples():
        place = row.target_position - row.chunk_index * LONG
        own_L = chunk_of(row.document_id, row.chunk_index)
        stock = stock_olmo(models[row.model])
        long: Case = (own_L, range(place))
        cases: list[Case] = [
            (with_far(own_L, chunk_of(row.document_id, row.chunk_index, 1), place), range(place)),
            (own_L, range(place - SHORT, place)),
            long,
        ]
        foreign_loss, short_loss, long_loss = naive_losses(stock, place, cases)
        (of_model,) = log_probs(stock, place, [long])
        found = [
            row.swapped_context_loss,
            row.short_context_loss,
            row.long_context_loss,
            row.loss_difference,
            row.swapped_context_divergence,
            row.short_context_divergence,
            row.long_context_entropy,
        ]
        expected = [
            foreign_loss,
            short_loss,
            long_loss,
            short_loss - long_loss,
            *naive_divergences(stock, place, long, cases[:2]),
            -(np.exp(of_model) * of_model).sum(),
        ]
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_context_lengths_by_default() -> None:
    default = ByLength(long_context_length=101, targets_per_chunk=1).context_lengths
    assert default == (8, 12, 16, 24, 32, 48, 64, 96, 100)


KV_CACHE_RULES = Path(__file__).parents[2] / "analysis" / "examples" / "kv_cache_rules.py"
Tables = dict[str, pd.DataFrame]


def tables_of(results: Path) -> Tables:
    return {artefact: Results(results).frame(artefact) for artefact in Results(results).tables}


@pytest.fixture(scope="module")
def tables(measurable: Path, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    results = tmp_path_factory.mktemp("every_rule")
    return tables_of(measure(influential_tokens, measurable, "--rules", *RULES, "--results", results))


def test_every_combination_has_its_rows(tables: Tables) -> None:
    counted = {artefact: len(frame) for artefact, frame in tables.items()}
    # 12 targets; 2 distant contexts; 5 ranks; 3 values of k, 4 of the two controls, up to 5, which the first
    # target's distant context is; 2 criteria
    assert counted == {
        "influential_tokens": 12 * 2 * len(RULES) * 5,
        "influences": 12 * 2,
        "sparse_context_losses": 12 * 2 * (3 * (len(RULES) - 2) + 4 + 4),
        "dependency_sparsity": 12 * len(RULES) * 2,
    }
    for frame in tables.values():
        assert set(frame[TARGET].itertuples(index=False, name=None)) == set(TARGET_POSITIONS)


def test_every_rule_ranks_the_far_context_and_its_null(tables: Tables) -> None:
    rows = tables["influential_tokens"]
    assert not rows.duplicated([*TARGET, "rule", "distant_context", "context_position"]).any()
    assert (rows["distance"] > SHORT).all()
    mimics = rows["null_kind"] == "mimicry"
    assert set(rows["rule"][mimics]) == {"add_one_in_divergence", "greedy_divergence"}
    best = tables["sparse_context_losses"].query("k == 1")
    best = best.pivot_table("sparse_context_loss", [*TARGET, "distant_context"], "rule")
    # The best single token is what add_one_in is defined by.
    assert (best.sub(best["add_one_in"], axis=0) >= -1e-5).all(axis=None)
    assert (best["greedy"] == best["add_one_in"]).all()


def test_sparsity_agrees_with_a_recomputation_from_the_sparse_losses(tables: Tables) -> None:
    sparse = tables["sparse_context_losses"].query("distant_context == 'own'")
    found = tables["dependency_sparsity"].set_index([*TARGET, "rule", "criterion"]).sort_index()
    assert found["loss_difference"].notna().all()
    for key, rows in sparse.groupby([*TARGET, "rule"]):
        short = rows["short_context_loss"].iloc[0]
        long = rows["long_context_loss"].iloc[0]
        expected_divergence = rows["short_context_divergence"].iloc[0]
        of_criterion = {
            "loss": (short - long, short - rows["sparse_context_loss"]),
            "divergence": (expected_divergence, expected_divergence - rows["sparse_context_divergence"]),
        }
        for criterion, (gain, recovered) in of_criterion.items():
            reaching = rows["k"][recovered >= 0.9 * gain]
            row = found.loc[(*key, criterion)]
            k_star = row["k_90"]
            assert pd.isna(k_star) if gain < 0.1 or reaching.empty else k_star == reaching.min()
            assert row["is_censored"] == (gain >= 0.1 and reaching.empty)
            assert row["gain"] == gain and row["loss_difference"] == short - long
    # The table is worth the test only if it holds all three outcomes; by divergence, which is never below
    # 0, the gain is small nowhere.
    for criterion, has_small_gains in (("loss", True), ("divergence", False)):
        rows = found.xs(criterion, level="criterion")
        assert rows["k_90"].notna().any() and rows["is_censored"].any()
        assert (rows["k_90"].isna() & ~rows["is_censored"]).any() == has_small_gains


def test_shards_move_no_number(measurable: Path, tmp_path: Path) -> None:
    one, three = (
        tables_of(
            measure(influential_tokens, measurable, "--documents-per-shard", n, "--results", tmp_path / n)
        )
        for n in ("1", "3")
    )
    names = [*TARGET, "rule", "distant_context", "rank", "k", "criterion"]
    for artefact, rows in one.items():  # shard by shard they come in another order
        key = [name for name in names if name in rows]
        pairs = (frame.sort_values(key, ignore_index=True) for frame in (rows, three[artefact]))
        pd.testing.assert_frame_equal(*pairs, check_exact=True)


def test_rules_of_a_file_are_measured_like_any_other(measurable: Path, tmp_path: Path) -> None:
    words = [
        "--results",
        tmp_path / "results",
        "--rules",
        "streaming_llm",
        "snapkv",
        "recency",
        "--rule-file",
    ]
    results = measure(influential_tokens, measurable, *words, KV_CACHE_RULES)
    chosen = tables_of(results)["influential_tokens"].query("distant_context == 'own'")
    places = chosen["context_position"] - chosen["chunk_index"] * LONG
    of_rules = places.groupby([chosen["rule"], chosen["target_position"] % LONG]).agg(list)
    # s = 4: the distant contexts of the targets at 9, 10 and 11 end before 5, 6 and 7.
    for target, first in ((9, [0, 1, 2, 3, 4]), (10, [0, 1, 2, 3, 5]), (11, [0, 1, 2, 3, 6])):
        assert of_rules["streaming_llm", target] == first * 4  # in each of four chunks
        assert len(of_rules["snapkv", target]) == 5 * 4
    other = tmp_path / "other.py"
    other.write_text(KV_CACHE_RULES.read_text().replace("def ", "def other_"))
    with pytest.raises(InputError, match="rule_files_sha256"):  # a changed rule is another setting
        measure(influential_tokens, measurable, *words, KV_CACHE_RULES, other)
