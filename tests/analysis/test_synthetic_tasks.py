"""Figures of synthetic tasks by hand: means over seeds, recall, verdicts; sparse functional attention."""

import math
from collections.abc import Sequence
from dataclasses import astuple
from io import StringIO
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import ttest_ind

from sparsity_length.figures import marked_bits, olmo_schemes, schemes, synthetic_tasks
from sparsity_length.figures.theory import (
    CONDITIONS,
    VOCABULARY_SIZE,
    SparseFunctionalAttention,
    draw_sequences,
    errors,
)


def table(text: str) -> pd.DataFrame:
    return pd.read_csv(StringIO(text), sep=r"\s+")


def test_means_and_ranges_over_seeds() -> None:
    by_size = table("""
        seed sparsity is_learnt 10  20  40
        0    1        True      1.0 1.0 0.8
        1    1        True      1.0 0.9 1.0
        0    2        False     1.0 0.6 1.0
        1    2        True      1.0 0.8 0.9
        0    3        True      0.5 0.5 0.5
    """)
    accuracy = by_size.melt(["seed", "sparsity", "is_learnt"], var_name="size", value_name="exact_match")
    alike = {"positions": "pose", "largest_train_size": 20, "largest_train_sparsity": 2}
    expected = table("""
        sparsity size exact_match exact_match_low exact_match_high num_seeds is_learnt
        1        10   1.0         1.0             1.0              2         True
        1        20   0.95        0.9             1.0              2         True
        1        40   0.9         0.8             1.0              2         True
        2        10   1.0         1.0             1.0              2         False
        2        20   0.7         0.6             0.8              2         False
        2        40   0.95        0.9             1.0              2         False
        3        10   0.5         0.5             0.5              1         True
        3        20   0.5         0.5             0.5              1         True
        3        40   0.5         0.5             0.5              1         True
    """)
    cells = synthetic_tasks.over_seeds(accuracy.astype({"size": int}).assign(task="sparse_parity", **alike))
    pd.testing.assert_frame_equal(cells[[*expected]], expected, check_dtype=False)


def selection(model: str, example: int, is_dependency: list[bool]) -> pd.DataFrame:
    """One target's selection in the order of rank; two true dependencies among five distant tokens."""
    return pd.DataFrame(
        {
            "task": "sparse_parity",
            "positions": "pose",
            "largest_train_size": 20,
            "largest_train_sparsity": 2,
            "size": 20,
            "sparsity": 1,
            "model": model,
            "example_index": example,
            "rule": "leave_one_out",
            "ablation": None,
            "rank": [*range(1, len(is_dependency) + 1)],
            "is_dependency": is_dependency,
            "num_distant_tokens": 5,
            "num_dependencies": 2,
        }
    )


def test_found_is_recall_at_the_number_of_true_dependencies() -> None:
    selections = [
        selection("a", 0, [True, False, True]),  # the third is beyond the two that there are
        selection("a", 1, [True, True, False]),
        selection("b", 0, [False, True, True]),
    ]
    expected = {"found": 0.625, "found_lowest": 0.5, "found_highest": 0.75, "chance": 0.4, "num_seeds": 2}
    assert synthetic_tasks.found_shares(pd.concat(selections))[[*expected]].to_dict("records") == [expected]


def seeds(function: str, by_k: list[list[float]]) -> pd.DataFrame:
    """Accuracy at 180 tokens, a row per seed and k from 1, of seeds that learned the function; 1 at 18."""
    return pd.DataFrame(
        [
            (f"sparse_{function}", seed, size, k, 1.0 if size == 18 else accuracy, True)
            for seed, accuracies in enumerate(by_k)
            for k, accuracy in enumerate(accuracies, start=1)
            for size in (18, 180)
        ],
        columns=["task", "seed", "size", "sparsity", "exact_match", "is_learnt"],
    )


def test_seeds_of_two_functions_are_no_pairs() -> None:
    """The interval is that of Welch's test, by scipy."""
    accuracy = pd.concat([seeds("or", [[1.0], [0.8]]), seeds("parity", [[0.4], [0.5], [0.6]])])
    welch = ttest_ind([1.0, 0.8], [0.4, 0.5, 0.6], equal_var=False).confidence_interval()
    assert astuple(marked_bits.or_minus_parity(accuracy, [1])) == pytest.approx((0.4, *welch))


@pytest.mark.parametrize(
    ("one_bit", "of_or", "word"),
    [
        (0.95, 0.95, "refuted"),
        (0.95, 0.55, "supported"),
        (0.95, 0.7, "inconclusive"),
        (0.6, 0.95, "inconclusive"),
    ],
)
def test_the_number_is_blamed_or_cleared_only_if_one_bit_holds(
    one_bit: float, of_or: float, word: str
) -> None:
    parity = [[one_bit, *[0.4 + 0.001 * seed] * 7] for seed in range(3)]
    accuracy = pd.concat(
        [seeds("parity", parity), seeds("or", [[of_or + 0.001 * seed] * 8 for seed in range(3)])]
    )
    assert marked_bits.verdict(accuracy) == word


@pytest.mark.parametrize(
    ("num_seeds", "few", "many", "word"),
    [
        (12, 0.95, 0.6, "supported"),
        (12, 0.95, 0.93, "refuted"),
        (12, 0.95, 0.86, "inconclusive"),
        (12, 0.6, 0.5, "inconclusive"),
        (11, 0.95, 0.6, "inconclusive"),
    ],
)
def test_parity_falls_with_k_by_the_rule(num_seeds: int, few: float, many: float, word: str) -> None:
    spread = [0.05 * (seed % 3 - 1) for seed in range(num_seeds)]
    accuracy = seeds("parity", [[few, few, 0.8, 0.8, *[many + more] * 4] for more in spread])
    assert marked_bits.fall_verdict(accuracy) == word


def test_answers_of_or_are_counted_beyond_one_bit_at_the_longest_size() -> None:
    # The parity of the first is 0.
    answers = table("""
        seed size sparsity decisive_tokens answer
        4    180  2        "* 1 * 1"       1
        4    180  2        "* 0 * 0"       0
        4    180  3        "* 1 * 1 * 0"   0
        4    180  1        "* 1"           0
        4    18   2        "* 1 * 1"       0
        5    180  2        "* 0 * 1"       1
    """)
    examples = answers.astype({"answer": str})
    assert marked_bits.agreement_with_or(examples).to_dict() == {4: pytest.approx(2 / 3), 5: 1}
    assert marked_bits.or_as_parity(examples).to_dict() == {1: 1, 2: pytest.approx(2 / 3), 3: 0}


def test_newcombe_of_a_difference_by_hand() -> None:
    """His example: 56 of 70 minus 48 of 80 is 0.2, [0.0524, 0.3339], by Wilson's ends of both."""
    rows = table("""
        size sparsity exact_match exact_match_low exact_match_high
        9    16       0.8         0.6916          0.8768
        9    4        0.6         0.4905          0.7003
    """)
    assert astuple(synthetic_tasks.beyond(rows, 16, 4)) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-3)


def scheme_cells(by_cell: dict[tuple[str, str], float], num_learned: int = 4) -> pd.DataFrame:
    """Four seeds of each (task, scheme), 1 point apart, right in so many cases at ten times the length."""
    rows = [
        (task, scheme, seed, seed < num_learned, 18 * times, 18, None if task == "copy" else 8, value)
        for (task, scheme), accuracy in by_cell.items()
        for seed in range(4)
        for times, value in ((1, 1.0), (10, accuracy + 0.01 * seed))
    ]
    names = ["task", "positions", "seed", "is_learnt", "size", "largest_train_size", "sparsity"]
    return schemes.of_cells(pd.DataFrame(rows, columns=[*names, "token_accuracy"]))


CLAIMED = {
    ("sparse_first", "pose"): 0.9,
    ("sparse_first", "alibi"): 0.5,
    ("copy", "coupled"): 0.9,
    ("copy", "alibi"): 0.2,
    ("sparse_last", "alibi"): 0.95,
}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({}, "supported"),
        ({("sparse_last", "alibi"): 0.75}, "inconclusive"),  # near it is better by 25 points, and no success
        ({("sparse_last", "alibi"): 0.55}, "refuted"),
        ({("sparse_first", "alibi"): 0.75}, "inconclusive"),  # N is now 20 points, F1 15
        ({("sparse_first", "pose"): 0.55, ("copy", "coupled"): 0.25}, "refuted"),
        ({("sparse_first", "pose"): 0.5, ("sparse_first", "alibi"): 0.5}, "inconclusive"),
    ],
)
def test_the_claim_needs_all_contrasts(changed: dict[tuple[str, str], float], word: str) -> None:
    assert schemes.verdict(scheme_cells(CLAIMED | changed)) == word


def test_contrasts_and_cells_count_seeds_that_learned() -> None:
    lead, word = schemes.contrast(scheme_cells(CLAIMED), "F1")
    low = 0.4 - 2.447 * (2 * 0.01**2 * 5 / 3 / 4) ** 0.5
    assert word == "supported" and (lead.estimate, lead.low) == pytest.approx((0.4, low), abs=1e-4)
    few = scheme_cells(CLAIMED, num_learned=2)
    assert schemes.contrast(few, "F1") == (None, "inconclusive")
    assert schemes.cell_words(few, "copy", "alibi") == "20% [20, 21] (2/4)"
    assert schemes.cell_words(scheme_cells(CLAIMED, num_learned=0), "copy", "alibi") == "(0/4)"
    assert not schemes.cell_words(few, "copy", "pose")


NUM_TOKENS = 3


def brute_force(
    attention: SparseFunctionalAttention, token_ids: Sequence[int], position_ids: Sequence[int]
) -> float:
    """Definition 3.3 term by term: every k-subset, its key and its value looked up one by one."""
    k = attention.sparsity
    reach = attention.key_reach
    keys = attention.log_keys.detach().reshape([2 * reach - 1] * (k - 1) + [NUM_TOKENS] * k)
    values = attention.raw_values.tanh().detach().reshape([NUM_TOKENS] * k)
    numerator = denominator = 0.0
    for subset in combinations(range(len(token_ids)), k):
        ids = [position_ids[place] for place in subset]
        tokens = [token_ids[place] for place in subset]
        if max(ids) - min(ids) < reach:  # else the key is 0
            relation = [later - ids[0] + reach - 1 for later in ids[1:]]
            key = math.exp(keys[(*relation, *tokens)])
            numerator += key * values[tuple(tokens)].item()
            denominator += key
    return numerator / denominator


@pytest.mark.parametrize("sparsity", [1, 2, 3])
@pytest.mark.parametrize(
    "position_ids",
    [tuple(range(8)), CONDITIONS["halves_coupled"].position_ids(8), (5, 0, 2, 2, 7, 1)],
)
@pytest.mark.parametrize("key_reach", [3, 8])
def test_equals_the_sum_over_all_subsets(
    sparsity: int, position_ids: tuple[int, ...], key_reach: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    token_ids_BS = torch.randint(NUM_TOKENS, (4, len(position_ids)), generator=generator)
    attention = SparseFunctionalAttention(sparsity, NUM_TOKENS, key_reach, generator)
    torch.nn.init.normal_(attention.log_keys, generator=generator)
    torch.nn.init.normal_(attention.raw_values, generator=generator)
    expected = [brute_force(attention, row, position_ids) for row in token_ids_BS.tolist()]
    assert attention(token_ids_BS, position_ids).tolist() == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) == 4


@pytest.mark.parametrize("name", ["local", "halves_coupled"])
def test_keys_on_the_planted_tokens_alone_have_no_error_at_any_length(name: str) -> None:
    condition = CONDITIONS[name]
    reach = condition.key_reach
    # Keys of 0 wherever X_S has a noise token; the value is the label of the planted signals.
    attention = SparseFunctionalAttention(2, VOCABULARY_SIZE, reach, torch.Generator())
    contents = [divmod(number, VOCABULARY_SIZE) for number in range(VOCABULARY_SIZE**2)]
    is_signal = torch.tensor([max(tokens) < 2 for tokens in contents])
    with torch.no_grad():
        attention.log_keys.copy_(torch.where(is_signal, 0.0, -torch.inf).repeat(2 * reach - 1))
        parity = torch.tensor([(first + second) % 2 for first, second in contents])
        attention.raw_values.copy_(50.0 - 100.0 * parity)  # tanh of it is 1 or -1 in float32
    for size in (16, 32, 256):
        drawn = draw_sequences(condition, 2, size, 50, np.random.default_rng(size))
        assert errors(attention, drawn) == {"test_length": size, "squared_error": 0, "error_rate": 0}
        # The same keys with the labels exchanged are always wrong: by 2, squared.
        wrong = (*drawn[:2], -drawn[2])
        assert errors(attention, wrong) == {"test_length": size, "squared_error": 4, "error_rate": 1}


@pytest.mark.parametrize(
    ("rise", "of_seed", "of_text", "word"),
    [
        (0.01, 0.0, 0.0, "supported"),
        (0.03, 0.0, 0.0, "refuted"),
        (0.01, 0.02, 0.0, "inconclusive"),  # Student's interval over four seeds is 0.01 ± 0.032
        (0.01, 0.0, 0.02, "inconclusive"),
    ],
)
def test_a_claim_about_alibi_holds_over_texts_and_over_seeds(
    rise: float, of_seed: float, of_text: float, word: str
) -> None:
    signs = (-1, 1, -1, 1)
    losses = pd.DataFrame(
        [
            (
                f"{scheme}-seed{seed}",
                text,
                3.0,
                3.0 + rise + of_seed * signs[seed] + of_text * signs[text],
                gain,
            )
            for scheme, gain in (("alibi", 0.1), ("long", 0.4))
            for seed in range(4)
            for text in range(4)
        ],
        columns=["model", "document_id", "loss_1", "loss_4", "specific"],
    )
    texts = olmo_schemes.of_texts(losses.assign(swapped_loss=losses["loss_4"] + losses["specific"]))
    rises = olmo_schemes.rises(texts, "alibi")
    assert [interval.estimate for interval in rises] == pytest.approx([rise, rise])
    assert olmo_schemes.is_below(olmo_schemes.MOST_RISE, rises) == word
    halves = olmo_schemes.beside_half(texts, "alibi")
    assert [interval.estimate for interval in halves] == pytest.approx([-0.1, -0.1])
    assert olmo_schemes.is_below(0, halves) == "supported"
