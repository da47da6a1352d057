"""mean_log2_k by hand and by brute force, and choices evaluated with other models by evaluate_tokens.

The stages are compared with stock models that read every context by hand (naive_predictions.py), and the
integral with a sum over a fine grid.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from measured_documents import (
    DOCUMENTS,
    SHORT,
    contents,
    flip,
    measure,
    with_far,
    write_checkpoint,
    write_data,
)
from measured_documents import chunk_of as chunk_of_length
from naive_predictions import Case, Stock, behind, divergence, log_probs, naive_losses, stock_olmo
from olmo.model import OLMo
from sparsity_length.programs import evaluate_tokens, influential_tokens
from sparsity_length.programs.query import connect, select

from sparsity_length.cli import InputError
from sparsity_length.measuring.sparsity import mean_log2_k
from sparsity_length.results.read import Results

NAMES = ("run", "third", "fourth")
L = 11  # chunks that all five documents hold
M = 3
KS = [1, 2, 4]
NULL, *TRIALS, SEARCH = 1, 2, 3, 4  # which document after a chunk's own serves as what
IN_BACKGROUND = ["--ablation", "swap", "--search-swaps", "1"]
WORDS = ["--long-context-length", str(L), "--k", *map(str, KS)]
TARGET = ["document_id", "chunk_index", "target_position"]
TOLERANCE = 2e-5
chunk_of = partial(chunk_of_length, length=L)


def value(shares: list[float], ks: list[int], num_far: int) -> float:
    return float(mean_log2_k(np.array([shares]), np.array(ks), np.array([num_far]))[0])


def test_by_hand() -> None:
    assert value([1, 1], [1, 2], 8) == 0  # one token does everything
    assert value([0, 0, 0], [1, 2, 4], 8) == pytest.approx(2 + 0.5)  # nothing before the last of 8: 1 - r
    # is 1 up to 4 tokens, and falls to 0 along a straight line in log2 k from 4 to 8
    assert value([0, 1, 0.2], [1, 2, 4], 8) == pytest.approx(0.5)  # what came back once stays
    assert value([0, 2, 1], [1, 2, 4], 8) == pytest.approx(0.5)  # above 1 counts as 1
    assert value([-3, 1, 1], [1, 2, 4], 8) == pytest.approx(0.5)  # below 0 counts as 0
    assert value([0.5], [1], 1) == 0  # F = 1: the only token is all of them
    assert value([0.25, 0.5], [1, 2], 6) == pytest.approx(0.625 + 0.25 * np.log2(3))  # F no power of two
    assert value([0.3, 0.5, 0.1], [1, 2, 4], 4) == pytest.approx(0.6 + 0.25)  # at k = F all is back
    # What fewer tokens than were studied recover is not known: as none at one token.
    assert value([1.0], [4], 8) == pytest.approx(1.0)


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


def naive_choice(stocks: dict[str, Stock], key: tuple[str, int, int]) -> np.ndarray:
    """Distant tokens by the divergence of replacing one by the search's document's."""
    own_L = chunk_of(*key[:2])
    place = key[2] - key[1] * L
    without = []
    for position in range(place - SHORT):
        tokens = own_L.copy()
        tokens[position] = chunk_of(*key[:2], SEARCH)[position]
        without.append((tokens, range(place)))
    whole_V, *others = log_probs(stocks["run"], place, [(own_L, range(place)), *without])
    scores = [divergence(whole_V, other_V) for other_V in others]
    # A stand-in may be the token itself, and says nothing: of equals the nearer comes first.
    return np.lexsort((-np.arange(len(scores)), -np.array(scores)))


def naive_values(stock: Stock, key: tuple[str, int, int], chosen: np.ndarray) -> list[float]:
    """mean_log2_k in each trial's swap."""
    own_L = chunk_of(*key[:2])
    place = key[2] - key[1] * L
    values = []
    for number in TRIALS:
        nothing = with_far(own_L, chunk_of(*key[:2], number), place)
        cases: list[Case] = [(own_L, range(place)), (nothing, range(place))]
        for k in KS:
            restored = nothing.copy()
            restored[chosen[:k]] = own_L[chosen[:k]]
            cases.append((restored, range(place)))
        whole_V, *others = log_probs(stock, place, cases)
        total, *left = (divergence(whole_V, other_V) for other_V in others)
        values.append(value([1 - one / total for one in left], KS, place - SHORT))
    return values


def test_the_stage_is_the_brute_force(crossed: Path, stocks: dict[str, Stock]) -> None:
    chosen = Results(crossed).frame("influential_tokens")
    assert set(chosen["model"]) == {"run"}
    own = chosen.query("rule == 'leave_one_out_divergence' and distant_context == 'own'").sort_values("rank")
    rows = Results(crossed).frame("dependency_sparsity")
    assert set(rows["model"]) == {"run"} and set(rows["evaluator"]) == set(NAMES)
    rows = rows.query("rule == 'leave_one_out_divergence' and criterion == 'divergence'")
    assert len(rows) == 3 * 6 * M
    for row in rows.itertuples():
        key = row.document_id, row.chunk_index, row.target_position
        mine = own[(own[TARGET] == key).all(axis=1)]["context_position"].to_numpy() - row.chunk_index * L
        best = naive_choice(stocks, key)
        assert mine.tolist() == best[: KS[-1]].tolist()
        expected = naive_values(stocks[row.evaluator], key, mine)
        np.testing.assert_allclose(row.mean_log2_k_of_swaps, expected, atol=5e-6)
        assert row.mean_log2_k == pytest.approx(np.mean(expected), abs=5e-6)
        assert row.k_50 is None or np.isnan(row.k_50) or row.k_50 in KS


def test_texts_without_a_null_lack_what_needs_one_and_that_is_said(folder: Path, tmp_path: Path) -> None:
    rules = ["--rules", "leave_one_out_divergence", "leave_one_out", "recency"]
    where = ["--results", tmp_path, "--null-fraction", "1e-18"]
    results = measure(influential_tokens, folder, *WORDS, *rules, *IN_BACKGROUND, *where)
    few = Results(results).frame("sparse_context_losses")
    # IDs of these documents are 0 and a little, so that of such a fraction none has a null.
    assert set(few["rule"]) == {"leave_one_out_divergence", "recency"}
    assert set(few["distant_context"]) == {"own"}
    every = measure(influential_tokens, folder, *WORDS, *rules, *IN_BACKGROUND, "--results", tmp_path / "all")
    every_rows = Results(every).frame("sparse_context_losses")
    assert set(every_rows["rule"]) == set(rules[1:])
    assert set(every_rows["distant_context"]) == {"own", "other_document"}
    same = every_rows.query("rule != 'leave_one_out' and distant_context == 'own'")
    np.testing.assert_allclose(few["sparse_context_loss"], same["sparse_context_loss"], atol=TOLERANCE)


def test_where_there_is_nothing_to_bring_back(folder: Path, crossed: Path, tmp_path: Path) -> None:
    of_third = (
        Results(crossed).frame("dependency_sparsity").query("evaluator == 'third' and rule == 'recency'")
    )
    middle = of_third.query("criterion == 'divergence'")["gain"].median()
    words = ["--checkpoints", str(folder / "third"), "--rules", "recency", "--minimum-gain", str(middle)]
    results = measure(influential_tokens, folder, *WORDS, *words, *IN_BACKGROUND, "--results", tmp_path)
    rows = Results(results).frame("dependency_sparsity").query("criterion == 'divergence'")
    is_small = rows["gain"] < middle
    assert 0 < is_small.sum() < len(rows)
    assert (rows["mean_log2_k"].isna() == is_small).all()


def test_choices_are_tried_on_another_model(
    folder: Path, crossed: Path, stocks: dict[str, Stock], tmp_path: Path
) -> None:
    words = ["--choices", str(crossed), "--checkpoints", str(folder / "fourth"), "--ablation", "mask"]
    results = measure(evaluate_tokens, folder, *words, "--results", tmp_path)
    chosen = Results(crossed).frame("influential_tokens").sort_values("rank")
    rows = Results(results).frame("sparse_context_losses")
    assert set(rows["distant_context"]) == {"own", "other_document"} and set(rows["evaluator"]) == {"fourth"}
    for row in rows.query("rule == 'leave_one_out_divergence'").itertuples():
        key = (row.document_id, row.chunk_index, row.target_position)
        place = row.target_position % L
        same = (chosen[TARGET] == key).all(axis=1) & (chosen["rule"] == row.rule)
        mine = chosen[same & (chosen["distant_context"] == row.distant_context)]
        far = np.sort(mine["context_position"].to_numpy()[: row.k] - row.chunk_index * L)
        own_L = chunk_of(*key[:2])
        far_L = own_L if row.distant_context == "own" else chunk_of(*key[:2], NULL)
        case: Case = with_far(own_L, far_L, place), [*far, *range(place - SHORT, place)]
        whole: Case = own_L, range(place)
        (loss,) = naive_losses(stocks["fourth"], place, [case])
        whole_V, case_V = log_probs(stocks["fourth"], place, [whole, case])
        assert row.sparse_context_loss == pytest.approx(loss, abs=TOLERANCE)
        assert row.sparse_context_divergence == pytest.approx(divergence(whole_V, case_V), abs=TOLERANCE)
    nearest = rows.query("rule == 'recency' and distant_context == 'own'")
    assert nearest["k"].max() == 4  # the whole distant context of the first target


def test_query_reads_selectors_and_evaluators_together(crossed: Path) -> None:
    sql = "SELECT DISTINCT model, evaluator FROM dependency_sparsity ORDER BY evaluator"
    assert select(connect(crossed, sql), sql).fetchall() == [
        ("run", "fourth"),
        ("run", "run"),
        ("run", "third"),
    ]
    assert Results(crossed).settings("influential_tokens").keys() == {"run"}


def test_a_lost_shard_is_tried_again_to_the_same_bytes(folder: Path, crossed: Path) -> None:
    before = contents(crossed)
    next((crossed / "_stages" / "evaluate_tokens").rglob("00001-of-*.done")).unlink()
    path = next((crossed / "sparse_context_losses" / "run" / "third").iterdir())
    flip(path)
    with pytest.raises(InputError, match="run evaluate_tokens"):
        Results(crossed).frame("sparse_context_losses")
    words = ["--checkpoints", *(str(folder / name) for name in NAMES[1:]), "--results", str(crossed)]
    measure(evaluate_tokens, folder, "--choices", str(crossed), *words)
    assert contents(crossed) == before


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
