"""Sparse functional attention is the sum as it is written, exact where it can be; where S* stands."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from legible_figures import assert_legible

from analysis.figures import theory
from analysis.figures.theory import (
    CONDITIONS,
    VOCABULARY_SIZE,
    Lengths,
    SparseFunctionalAttention,
    draw_sequences,
    errors,
    places_across_halves,
    relations_of,
    subsets_within_reach,
)
from pipeline.cli import InputError
from pipeline.results.read import read_artefact
from pipeline.synthetic.tasks import PositionLaw, local_places, uniform_places

NUM_TOKENS = 3
LENGTHS = Lengths(train_context_length=32, local_length=8)
CONTIGUOUS = tuple(range(8))
COUPLED = CONDITIONS["halves_coupled"].position_ids(8)


def attention_with(sparsity: int, key_reach: int) -> SparseFunctionalAttention:
    """Random keys and values."""
    generator = torch.Generator().manual_seed(0)
    attention = SparseFunctionalAttention(sparsity, NUM_TOKENS, key_reach, generator)
    with torch.no_grad():
        attention.log_keys.copy_(torch.randn(attention.log_keys.shape, generator=generator))
        attention.raw_values.copy_(torch.randn(attention.raw_values.shape, generator=generator))
    return attention


def brute_force(
    attention: SparseFunctionalAttention, token_ids: Sequence[int], position_ids: Sequence[int]
) -> float:
    """Definition 3.3 term by term: every k-subset, its key and its value looked up one by one."""
    k = attention.sparsity
    reach = attention.key_reach
    keys = attention.log_keys.detach().reshape((2 * reach - 1,) * (k - 1) + (NUM_TOKENS,) * k)
    values = attention.values().detach().reshape((NUM_TOKENS,) * k)
    numerator = denominator = 0.0
    for subset in combinations(range(len(token_ids)), k):
        ids = [position_ids[place] for place in subset]
        tokens = [token_ids[place] for place in subset]
        if max(ids) - min(ids) >= reach:
            continue  # the key is 0
        relation = [later - ids[0] + reach - 1 for later in ids[1:]]
        key = math.exp(keys[(*relation, *tokens)].item())
        numerator += key * values[tuple(tokens)].item()
        denominator += key
    return numerator / denominator


@pytest.mark.parametrize("sparsity", [1, 2, 3])
@pytest.mark.parametrize("position_ids", [CONTIGUOUS, COUPLED, (5, 0, 2, 2, 7, 1)])
def test_equals_the_sum_over_all_subsets(sparsity: int, position_ids: tuple[int, ...]) -> None:
    token_ids_BS = torch.from_numpy(np.random.default_rng(1).integers(0, NUM_TOKENS, (4, len(position_ids))))
    for key_reach in (3, 8):
        attention = attention_with(sparsity, key_reach)
        expected = [brute_force(attention, row, position_ids) for row in token_ids_BS.tolist()]
        assert attention(token_ids_BS, position_ids).tolist() == pytest.approx(expected, abs=1e-6), key_reach
        assert len(set(expected)) == 4


@pytest.mark.parametrize("position_ids", [CONTIGUOUS, COUPLED])
def test_shifting_all_position_ids_changes_nothing(position_ids: tuple[int, ...]) -> None:
    attention = attention_with(2, 5)
    token_ids_BS = torch.tensor([[0, 2, 1, 1, 0, 2, 2, 0]])
    moved = tuple(position_id + 1000 for position_id in position_ids)
    stretched = tuple(2 * position_id for position_id in position_ids)
    assert torch.equal(attention(token_ids_BS, moved), attention(token_ids_BS, position_ids))
    assert not torch.equal(attention(token_ids_BS, stretched), attention(token_ids_BS, position_ids))


def test_subsets_and_relations_that_a_reader_can_check() -> None:
    subsets = subsets_within_reach((0, 1, 2, 3), 2, 3)
    assert subsets.tolist() == [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3]]  # not 0 and 3, which differ by 3
    # Differences -2 … 2 are numbered 0 … 4.
    assert relations_of((0, 1, 2, 3), subsets, 3).tolist() == [3, 4, 3, 4, 3]
    coupled = subsets_within_reach((0, 1, 0, 1), 2, 2)
    assert coupled.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert relations_of((0, 1, 0, 1), coupled, 2).tolist() == [2, 1, 2, 0, 1, 2]
    # n tokens have n - d pairs at distance d: 7 n - 28 within reach 8, n (n - 1) / 2 without a limit.
    ids = tuple(range(256))
    assert [len(subsets_within_reach(ids, 2, reach)) for reach in (8, 256)] == [7 * 256 - 28, 256 * 255 // 2]


@pytest.mark.parametrize("name", ["local", "halves_coupled"])
def test_keys_on_the_planted_tokens_alone_have_no_error_at_any_length(name: str) -> None:
    condition = CONDITIONS[name]
    reach = condition.key_reach(LENGTHS)
    # Keys of 0 wherever X_S has a noise token; the value is the label of the planted signals.
    attention = SparseFunctionalAttention(2, VOCABULARY_SIZE, reach, torch.Generator())
    contents = [divmod(number, VOCABULARY_SIZE) for number in range(VOCABULARY_SIZE**2)]
    is_signal = torch.tensor([max(tokens) < 2 for tokens in contents])
    with torch.no_grad():
        attention.log_keys.copy_(torch.where(is_signal, 0.0, -torch.inf).repeat(2 * reach - 1))
        parity = torch.tensor([(first + second) % 2 for first, second in contents])
        attention.raw_values.copy_(50.0 - 100.0 * parity)  # tanh of it is 1 or -1 in float32
    for size in (16, 32, 256):
        drawn = draw_sequences(condition, LENGTHS, 2, size, 50, np.random.default_rng(size))
        assert errors(attention, drawn) == {"test_length": size, "squared_error": 0, "error_rate": 0}
        # The same keys with the labels exchanged are always wrong: by 2, squared.
        wrong = (*drawn[:2], -drawn[2])
        assert errors(attention, wrong) == {"test_length": size, "squared_error": 4, "error_rate": 1}


@pytest.mark.parametrize(
    ("law", "size", "probabilities"),
    [
        # Blocks 012 and 123, a half each; three pairs in each, a third each. 1 2 is in both.
        (partial(local_places, local_length=3), 4, {(0, 1): 1, (0, 2): 1, (1, 2): 2, (1, 3): 1, (2, 3): 1}),
        (uniform_places, 4, {(0, 1): 1, (0, 2): 1, (0, 3): 1, (1, 2): 1, (1, 3): 1, (2, 3): 1}),
        # Halves 012 and 345; blocks of two places begin at 0 or 1; four pairs in each. 1 4 is in both.
        (
            partial(places_across_halves, local_length=2),
            6,
            {(0, 3): 1, (0, 4): 1, (1, 3): 1, (1, 4): 2, (1, 5): 1, (2, 4): 1, (2, 5): 1},
        ),
    ],
)
def test_the_probability_of_every_pair(
    law: PositionLaw, size: int, probabilities: dict[tuple[int, int], int]
) -> None:
    generator = np.random.default_rng(0)
    num_draws = 4000
    drawn = Counter(tuple(law(size, 2, generator).tolist()) for _ in range(num_draws))
    assert drawn.keys() == probabilities.keys()
    for pair, parts in probabilities.items():
        expected = parts / sum(probabilities.values())
        deviation = (num_draws * expected * (1 - expected)) ** 0.5
        assert abs(drawn[pair] - num_draws * expected) < 5 * deviation


def test_labels_lengths_and_reaches_by_hand() -> None:
    token_ids_BS, position_ids_S, labels_B = draw_sequences(
        CONDITIONS["local"], LENGTHS, 2, 16, 200, np.random.default_rng(0)
    )
    assert position_ids_S == tuple(range(16))
    for tokens, label in zip(token_ids_BS.tolist(), labels_B.tolist(), strict=True):
        signals = [token for token in tokens if token < 2]  # noise is 2 to 9
        assert len(signals) == 2
        assert label == (1 if signals[0] == signals[1] else -1)
    assert Lengths(16, 4).of_training == (8, 10, 12, 14, 16)
    assert Lengths(16, 4).of_tests == (8, 10, 12, 14, 16, 32, 64, 128)
    reaches = {name: condition.key_reach(LENGTHS) for name, condition in CONDITIONS.items()}
    assert (reaches["local"], reaches["halves_coupled"]) == (8, 8)
    assert reaches["halves_trained_keys"] == 32
    assert COUPLED == (0, 1, 2, 3, 0, 1, 2, 3)


SMALL = ["--train-context-length", "16", "--local-length", "4", "--num-test-sequences", "40"]


def measure(folder: Path, *flags: str) -> None:
    words = ["--results", str(folder), "--figures", str(folder / "figures"), *SMALL, *flags]
    theory.main(theory.parser().parse_args(words))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theory")
    conditions = ["--conditions", "local", "halves_trained_keys", "halves_coupled"]
    measure(folder, *conditions, "--seeds", "0", "3", "--steps", "128")
    return folder


def test_what_the_theorems_speak_of_is_kept_and_the_rest_is_not(results: Path) -> None:
    rows = read_artefact(results, theory.STAGE)
    assert len(rows) == 3 * 2 * 5 * 8  # conditions, seeds, measured steps, test lengths
    at_step = rows[rows["test_length"] == 16].groupby("training_step")["squared_error"].mean()
    assert at_step[8] > 10 * at_step[128]  # training lowers it
    error = rows[rows["training_step"] == 128].groupby(["model", "test_length"])["squared_error"].max()
    for model in ("local-k2", "halves_coupled-k2"):
        assert error[model, 16] < 0.1
        assert error[model, 128] < 0.6
    assert error["halves_trained_keys-k2", 16] < 0.1
    assert error["halves_trained_keys-k2", 128] > 0.9
    assert (results / "figures" / "sparse_functional_attention.png").exists()


def test_an_interrupted_run_goes_on_to_the_same_bytes_and_others_are_refused(
    results: Path, tmp_path: Path
) -> None:
    flags = ["--conditions", "local", "--seeds", "0", "3", "--steps"]
    measure(tmp_path, *flags, "128")
    shards = sorted((tmp_path / theory.STAGE / "model=local-k2").iterdir())
    before = [shard.read_bytes() for shard in shards]
    shards[0].unlink()
    (tmp_path / "_stages" / theory.STAGE / "model=local-k2" / "00000-of-00002.done").unlink()
    measure(tmp_path, *flags, "128")
    assert [shard.read_bytes() for shard in shards] == before
    of_all = sorted((results / theory.STAGE / "model=local-k2").iterdir())
    assert [shard.read_bytes() for shard in of_all] == before
    with pytest.raises(InputError, match="num_steps"):
        measure(tmp_path, *flags, "65")
    with pytest.raises(InputError, match="L_local"):
        measure(tmp_path / "other", "--local-length", "5")


def planted_fits(error_rate: float) -> pd.DataFrame:
    """Squared errors of seed + 1 times (L̄/L)^2, in three cases of k = 2; `error_rate` where uncoupled."""
    return pd.DataFrame(
        {
            "model": f"{case}-k2",
            "seed": seed,
            "sparsity": 2,
            "train_context_length": 8,
            "training_step": 20,
            "test_length": test,
            "squared_error": 1e-4 * (seed + 1) * (test / 8) ** 2,
            "error_rate": error_rate if test > 8 and case == "halves_trained_keys" else 0.0,
        }
        for case in theory.CASES
        for seed in range(3)
        for test in (4, 6, 8, 16, 64)
    )


def test_a_planted_power_is_found_and_drawn() -> None:
    table = theory.by_length(planted_fits(0.5))
    row = table[(table["model"] == "local-k2") & (table["test_length"] == 64)].iloc[0]
    delta = 2e-4 * np.mean([(4 / 8) ** 2, (6 / 8) ** 2, 1])
    assert row["in_distribution_error"] == pytest.approx(delta)
    assert row["improved_bound"] == pytest.approx(64 * delta)
    assert [row[f"growth_exponent{end}"] for end in ("", "_low", "_high")] == pytest.approx([2, 2, 2])
    assert [row[f"squared_error{end}"] for end in ("_low", "", "_high")] == pytest.approx(
        [0.0064, 0.0128, 0.0192]
    )
    figure = theory.bounds_figure(table)
    assert max(figure.axes[0].lines[2].get_ydata()) == 0.5
    assert "far apart and uncoupled" in " ".join(figure.get_suptitle().split())
    assert_legible(figure)
    none = theory.bounds_figure(theory.by_length(planted_fits(0.0)))
    assert "hold in every case" in none.get_suptitle()
