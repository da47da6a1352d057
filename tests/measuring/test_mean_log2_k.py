"""Rows of the measuring stages: mean_log2_k, evaluators, swapped contexts, rules; counted and recomputed.

The stages are compared with stock models that read every context by hand (naive_predictions.py), and the
integral of mean_log2_k with a sum over a fine grid.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from measured_documents import (
    DOCUMENTS,
    LONG,
    SHORT,
    TARGET_POSITIONS,
    chunk_of,
    measure,
    with_far,
    write_checkpoint,
    write_data,
)
from naive_predictions import Case, Stock, behind, divergence, log_probs, stock_olmo
from olmo.model import OLMo
from sparsity_length.programs import evaluate_tokens, influential_tokens, loss_differences

from sparsity_length.cli import InputError
from sparsity_length.measuring.rules import RULES
from sparsity_length.measuring.sparsity import mean_log2_k
from sparsity_length.results.read import Results

KV_CACHE_RULES = Path(__file__).parents[2] / "analysis" / "examples" / "kv_cache_rules.py"
NAMES = ("run", "third", "fourth")
L = 11  # a length of chunks that all five documents hold
M = 3
KS = [1, 2, 4]
NULL, *TRIALS, SEARCH = 1, 2, 3, 4  # which document after a chunk's own serves as what
IN_BACKGROUND = ["--ablation", "swap", "--search-swaps", "1"]
WORDS = ["--long-context-length", str(L), "--k", *map(str, KS)]
TARGET = ["document_id", "chunk_index", "target_position"]
TOLERANCE = 1e-5


def value(shares: list[float], ks: list[int], num_far: int) -> float:
    return float(mean_log2_k(np.array([shares]), np.array(ks), np.array([num_far]))[0])


@pytest.mark.parametrize(
    ("shares", "ks", "num_far", "expected"),
    [
        ([1, 1], [1, 2], 8, 0),  # one token does everything
        # Nothing before the last of 8: 1 - r is 1 up to 4 tokens, and falls to 0 along a straight line in
        # log2 k from 4 to 8.
        ([0, 0, 0], [1, 2, 4], 8, 2 + 0.5),
        ([0, 1, 0.2], [1, 2, 4], 8, 0.5),  # what came back once stays
        ([0, 2, 1], [1, 2, 4], 8, 0.5),  # above 1 counts as 1
        ([-3, 1, 1], [1, 2, 4], 8, 0.5),  # below 0 counts as 0
        ([0.5], [1], 1, 0),  # F = 1: the only token is all of them
        ([0.25, 0.5], [1, 2], 6, 0.625 + 0.25 * np.log2(3)),  # F no power of two
        ([0.3, 0.5, 0.1], [1, 2, 4], 4, 0.6 + 0.25),  # at k = F all is back
        # What fewer tokens than were studied recover is not known: as none at one token.
        ([1.0], [4], 8, 1.0),
    ],
)
def test_by_hand(shares: list[float], ks: list[int], num_far: int, expected: float) -> None:
    assert value(shares, ks, num_far) == pytest.approx(expected)


def test_it_is_the_mean_over_thresholds() -> None:
    generator = np.random.default_rng(0)
    ks = [1, 2, 4, 8, 16]
    num_far = 37
    for _ in range(20):
        shares = generator.normal(0.5, 0.4, len(ks))
        reached = [*np.maximum.accumulate(shares.clip(0, 1)), 1.0]
        thresholds = (np.arange(200_000) + 0.5) / 200_000
        # Along straight lines in log2 k; what is reached at once takes one token.
        needed = np.interp(thresholds, reached, np.log2([*ks, num_far]))
        assert value(list(shares), ks, num_far) == pytest.approx(needed.mean(), abs=5e-5)


@pytest.fixture(scope="module", params=[(7,), pytest.param((), marks=pytest.mark.slow)], ids=["bos", ""])
def bos_token_ids(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """Before every context of the models, or nothing."""
    return request.param


@pytest.fixture(scope="module")
def stocks(make_olmo: Callable[..., OLMo], bos_token_ids: tuple[int, ...]) -> dict[str, Stock]:
    return {name: behind(stock_olmo(make_olmo(seed=seed)), bos_token_ids) for seed, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, make_olmo: Callable[..., OLMo], bos_token_ids: tuple[int, ...]
) -> Path:
    folder = tmp_path_factory.mktemp("mean_log2_k")
    write_data(folder / "data", bos_token_ids=bos_token_ids)
    for seed, name in enumerate(NAMES):
        write_checkpoint(folder / name, make_olmo(seed=seed))
    return folder


@pytest.fixture(scope="module")
def crossed(folder: Path) -> Path:
    """One model chooses, it and two others try the choice in two other swaps, in one folder."""
    first, *evaluators = [str(folder / name) for name in NAMES]
    rules = ["--rules", "leave_one_out_divergence", "random", "recency"]
    where = ["--results", str(folder / "crossed")]
    words = ["--checkpoints", first, "--minimum-gain", "0", *where]
    results = measure(influential_tokens, folder, *WORDS, *words, *rules, *IN_BACKGROUND)
    return measure(evaluate_tokens, folder, "--choices", str(results), "--checkpoints", *evaluators, *where)


def chunks_of(row: Any) -> list[np.ndarray]:
    """The row's chunk, and those of the documents after it, by what they serve as."""
    return [chunk_of(row.document_id, row.chunk_index, number, length=L) for number in range(SEARCH + 1)]


def naive_choice(stock: Stock, chunks: list[np.ndarray], place: int) -> np.ndarray:
    """Distant tokens by the divergence of replacing one by the search's document's."""
    own_L = chunks[0]
    without = [np.where(np.arange(L) == one, chunks[SEARCH], own_L) for one in range(place - SHORT)]
    whole_V, *others = log_probs(stock, place, [(tokens_L, range(place)) for tokens_L in (own_L, *without)])
    scores = np.array([divergence(whole_V, other_V) for other_V in others])
    # A stand-in may be the token itself, and says nothing: of equals the nearer comes first.
    return np.lexsort((-np.arange(len(scores)), -scores))


def naive_values(stock: Stock, chunks: list[np.ndarray], place: int, chosen: np.ndarray) -> list[float]:
    """mean_log2_k in each trial's swap."""
    own_L = chunks[0]
    values = []
    for number in TRIALS:
        nothing = with_far(own_L, chunks[number], place)
        restored = [np.where(np.isin(np.arange(L), chosen[:k]), own_L, nothing) for k in KS]
        cases: list[Case] = [(tokens_L, range(place)) for tokens_L in (own_L, nothing, *restored)]
        whole_V, *others = log_probs(stock, place, cases)
        total, *left = (divergence(whole_V, other_V) for other_V in others)
        values.append(value([1 - one / total for one in left], KS, place - SHORT))
    return values


def test_the_stage_is_the_brute_force(crossed: Path, stocks: dict[str, Stock]) -> None:
    chosen = Results(crossed).frame("influential_tokens")
    own = chosen.query("distant_context == 'own'").sort_values("rank")
    rows = Results(crossed).frame("dependency_sparsity")
    assert set(rows["model"]) == {"run"} and set(rows["evaluator"]) == set(NAMES)
    rows = rows.query("criterion == 'divergence'")
    assert len(rows) == 3 * 3 * 6 * M
    for row in rows.itertuples():
        key = row.document_id, row.chunk_index, row.target_position, row.rule
        mine = own[(own[[*TARGET, "rule"]] == key).all(axis=1)]["context_position"].to_numpy() % L
        chunks = chunks_of(row)
        place = row.target_position % L
        if row.rule == "leave_one_out_divergence":
            assert mine.tolist() == naive_choice(stocks["run"], chunks, place)[: KS[-1]].tolist()
        expected = naive_values(stocks[row.evaluator], chunks, place, mine)
        # Made of ratios of divergences, each of which is within TOLERANCE.
        np.testing.assert_allclose(row.mean_log2_k_of_swaps, expected, atol=2 * TOLERANCE)
        assert row.mean_log2_k == pytest.approx(np.mean(expected), abs=2 * TOLERANCE)


def test_texts_without_a_null_lack_what_needs_one_and_only_that(
    folder: Path, crossed: Path, tmp_path: Path
) -> None:
    # IDs of these documents are 0 and a little, so that of such a fraction none has a null.
    words = ["--rules", "leave_one_out_divergence", "leave_one_out", "recency", "--null-fraction", "1e-18"]
    results = measure(influential_tokens, folder, *WORDS, *words, *IN_BACKGROUND, "--results", tmp_path)
    few = Results(results).frame("sparse_context_losses")
    assert set(few["rule"]) == {"leave_one_out_divergence", "recency"}
    assert set(few["distant_context"]) == {"own"}
    with_null = Results(crossed).frame("sparse_context_losses")
    same = with_null.query("evaluator == 'run' and rule != 'random' and distant_context == 'own'")
    np.testing.assert_allclose(few["sparse_context_loss"], same["sparse_context_loss"], atol=TOLERANCE)


def test_choices_are_tried_under_another_ablation(
    folder: Path, crossed: Path, stocks: dict[str, Stock], tmp_path: Path
) -> None:
    """Tokens that another model chose in swapped contexts, beside the short context alone."""
    words = ["--checkpoints", str(folder / "fourth"), "--ablation", "mask", "--results", str(tmp_path)]
    measure(evaluate_tokens, folder, "--choices", str(crossed), *words)
    chosen = Results(crossed).frame("influential_tokens").sort_values("rank")
    assert [*Results(tmp_path).settings("influential_tokens")] == ["run"]
    rows = Results(tmp_path).frame("sparse_context_losses")
    assert rows.query("rule == 'recency'")["k"].max() == 4  # the whole distant context of the first target
    rows = rows.query("rule == 'leave_one_out_divergence'")
    assert set(rows["distant_context"]) == {"own", "other_document"}
    for row in rows.itertuples():
        key = row.document_id, row.chunk_index, row.target_position, row.rule, row.distant_context
        mine = chosen[(chosen[[*TARGET, "rule", "distant_context"]] == key).all(axis=1)]
        chunks = chunks_of(row)
        place = row.target_position % L
        far_L = chunks[0] if row.distant_context == "own" else chunks[NULL]
        far = np.sort(mine["context_position"].to_numpy()[: row.k] % L)
        case: Case = with_far(chunks[0], far_L, place), [*far, *range(place - SHORT, place)]
        whole_V, case_V = log_probs(stocks["fourth"], place, [(chunks[0], range(place)), case])
        assert row.sparse_context_loss == pytest.approx(-case_V[chunks[0][place]], abs=TOLERANCE)
        assert row.sparse_context_divergence == pytest.approx(divergence(whole_V, case_V), abs=TOLERANCE)


def test_more_trials_than_the_choice_had_are_in_no_text_of_its_search(
    folder: Path, stocks: dict[str, Stock], tmp_path: Path
) -> None:
    """The choice was tried in the second document behind its own, and searched in the third."""
    measure(
        influential_tokens,
        folder,
        *[*WORDS, *IN_BACKGROUND, "--trial-swaps", "1", "--rules", "recency", "--results", tmp_path],
    )
    words = ["--choices", tmp_path, "--checkpoints", folder / "third", "--trial-swaps", "2"]
    results = measure(evaluate_tokens, folder, *words, "--results", tmp_path / "tried")
    for row in Results(results).frame("sparse_context_losses").itertuples():
        own_L, _, first, _, second = chunks_of(row)
        place = row.target_position % L
        cases: list[Case] = [(with_far(own_L, other_L, place), range(place)) for other_L in (first, second)]
        mean_V = np.mean(log_probs(stocks["third"], place, cases), axis=0)
        assert row.swapped_loss == pytest.approx(-mean_V[own_L[place]], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("stage", "words", "sentence"),
    [
        (influential_tokens, "--k 1 64", "--k 64 is more than the 4"),
        (influential_tokens, "--ablation swap --search-swaps 1 --rules greedy", "greedy"),
        (influential_tokens, "--rules leave_one_out --null-fraction 0.5", "--null-fraction"),
        (evaluate_tokens, "--choices {none}/nowhere", "no model"),
        (evaluate_tokens, "--choices {crossed} --choices-of nobody", "choices of run; name one"),
        (evaluate_tokens, "--choices {crossed} --checkpoints {crossed}/../run --results {crossed}", "own"),
        (evaluate_tokens, "--choices {crossed} --ablation mask --results {crossed}", "ablation"),
    ],
)
def test_what_is_refused(
    stage: ModuleType, words: str, sentence: str, folder: Path, crossed: Path, tmp_path: Path
) -> None:
    none = tmp_path / "none"
    given = {influential_tokens: WORDS, evaluate_tokens: ["--checkpoints", str(folder / "third")]}[stage]
    with pytest.raises(InputError, match=sentence):
        measure(stage, folder, *given, "--results", none, *words.format(none=none, crossed=crossed).split())
    assert not none.exists()


def test_choices_must_be_whole_and_of_this_text(
    folder: Path, crossed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--checkpoints", str(folder / "third"), "--results", tmp_path / "results"]
    shutil.copytree(crossed, tmp_path / "part")
    next((tmp_path / "part" / "_stages" / "influential_tokens").rglob("*.done")).unlink()
    with pytest.raises(InputError, match="run influential_tokens again"):
        measure(evaluate_tokens, folder, *words, "--choices", tmp_path / "part")
    monkeypatch.setitem(DOCUMENTS, "00000000000000dd", DOCUMENTS["00000000000000dd"][::-1])
    data = write_data(tmp_path / "data")
    with pytest.raises(InputError, match="of another text"):
        measure(evaluate_tokens, folder, *words, "--choices", str(crossed), "--data", str(data))


def test_foreign_contexts(folder: Path, stocks: dict[str, Stock], tmp_path: Path) -> None:
    words = ["--checkpoints", folder / "run", folder / "third", "--results", tmp_path]
    rows = Results(measure(loss_differences, folder, *words)).frame("loss_differences")
    assert len(rows) == 2 * 12
    np.testing.assert_array_equal(
        rows["document_specific_gain"], rows["swapped_context_loss"] - rows["long_context_loss"]
    )
    for row in rows.itertuples():
        place = row.target_position - row.chunk_index * LONG
        own_L = chunk_of(row.document_id, row.chunk_index)
        swapped_L = with_far(own_L, chunk_of(row.document_id, row.chunk_index, 1), place)
        cases: list[Case] = [
            (own_L, range(place)),
            (own_L, range(place - SHORT, place)),
            (swapped_L, range(place)),
        ]
        long_V, short_V, swapped_V = log_probs(stocks[row.model], place, cases)
        target = own_L[place]
        expected = {
            "long_context_loss": -long_V[target],
            "short_context_loss": -short_V[target],
            "swapped_context_loss": -swapped_V[target],
            "loss_difference": long_V[target] - short_V[target],
            "short_context_divergence": divergence(long_V, short_V),
            "swapped_context_divergence": divergence(long_V, swapped_V),
            "long_context_entropy": -(np.exp(long_V) * long_V).sum(),
        }
        np.testing.assert_allclose(
            [getattr(row, name) for name in expected], list(expected.values()), atol=TOLERANCE
        )


Tables = dict[str, pd.DataFrame]
MINIMUM_GAIN = 0.8


def measured_tables(folder: Path, results: Path, *words: str | Path) -> Tables:
    found = Results(measure(influential_tokens, folder, "--results", results, *words))
    return {artefact: found.frame(artefact) for artefact in found.tables}


@pytest.fixture(scope="module")
def tables(measurable: Path, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    words = ["--minimum-gain", str(MINIMUM_GAIN), "--rules", *RULES]
    return measured_tables(measurable, tmp_path_factory.mktemp("every_rule"), *words)


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
    assert {*rows.query("null_kind == 'mimicry'")["rule"]} == {"add_one_in_divergence", "greedy_divergence"}


@pytest.mark.parametrize("criterion", ["loss", "divergence"])
def test_sparsity_agrees_with_a_recomputation_from_the_sparse_losses(tables: Tables, criterion: str) -> None:
    key = [*TARGET, "rule"]
    sparse = tables["sparse_context_losses"].query("distant_context == 'own'").set_index(key)
    short = sparse[f"short_context_{criterion}"]
    gain = short - (sparse["long_context_loss"] if criterion == "loss" else 0)
    reaching = sparse["k"].where(short - sparse[f"sparse_context_{criterion}"] >= 0.9 * gain)
    by_target = pd.DataFrame({"gain": gain, "k": reaching}).groupby(key).agg({"gain": "first", "k": "min"})
    found = tables["dependency_sparsity"].query(f"criterion == '{criterion}'").set_index(key)
    of_row = by_target.loc[found.index]
    is_small = of_row["gain"] < MINIMUM_GAIN
    np.testing.assert_array_equal(found["gain"], of_row["gain"])
    losses = sparse[["short_context_loss", "long_context_loss"]].groupby(key).first().loc[found.index]
    assert (found["loss_difference"] == losses["short_context_loss"] - losses["long_context_loss"]).all()
    np.testing.assert_array_equal(found["k_90"].astype(float), of_row["k"].mask(is_small).astype(float))
    assert (found["is_censored"] == ~is_small & of_row["k"].isna()).all()
    assert (found["mean_log2_k"].isna() == is_small).all()
    # The table is worth the test only if it holds all three outcomes.
    assert found["k_90"].notna().any() and found["is_censored"].any() and is_small.any()


def test_shards_move_no_number(measurable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = measured_tables(measurable, tmp_path / "1", "--documents-per-shard", "1")
    assert " forward tokens]" in capsys.readouterr().err
    three = measured_tables(measurable, tmp_path / "3", "--documents-per-shard", "3")
    names = [*TARGET, "rule", "distant_context", "rank", "k", "criterion"]
    for artefact, rows in one.items():  # shard by shard they come in another order
        key = [name for name in names if name in rows]
        pairs = (frame.sort_values(key, ignore_index=True) for frame in (rows, three[artefact]))
        pd.testing.assert_frame_equal(*pairs, check_exact=True)


def test_rules_of_a_file_are_measured_like_any_other(measurable: Path, tmp_path: Path) -> None:
    words = ["--rules", "streaming_llm", "snapkv", "recency", "--rule-file", KV_CACHE_RULES]
    tables = measured_tables(measurable, tmp_path / "results", *words)
    chosen = tables["influential_tokens"].query("distant_context == 'own'")
    places = chosen["context_position"] - chosen["chunk_index"] * LONG
    of_rules = places.groupby([chosen["rule"], chosen["target_position"] % LONG]).agg(list)
    # s = 4: the distant contexts of the targets at 9, 10 and 11 end before 5, 6 and 7.
    for target, first in ((9, [0, 1, 2, 3, 4]), (10, [0, 1, 2, 3, 5]), (11, [0, 1, 2, 3, 6])):
        assert of_rules["streaming_llm", target] == first * 4  # in each of four chunks
        assert len(of_rules["snapkv", target]) == 5 * 4
    del RULES["snapkv"]  # as in a process that has not read the file
    choices = ["--choices", tmp_path / "results", "--results", tmp_path / "tried"]
    tried = Results(measure(evaluate_tokens, measurable, *choices, *words[-2:]))
    assert {*tried.frame("sparse_context_losses")["rule"]} == {"streaming_llm", "snapkv", "recency"}
    other = tmp_path / "other.py"
    other.write_text(KV_CACHE_RULES.read_text().replace("def ", "def other_"))
    with pytest.raises(InputError, match="rule_files_sha256"):  # a changed rule is another setting
        measured_tables(measurable, tmp_path / "results", *words, other)
