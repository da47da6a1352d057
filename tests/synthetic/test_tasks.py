"""Every task: its docstring's example, dependencies, position IDs; planted evidence is found.

Task models: the stock models, schemes of attention by hand, generation with a cache, measured contexts.
"""

import doctest
from collections import defaultdict
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hand_made_models import EvidenceLM
from torch.nn.functional import pad

from sparsity_length.cli import InputError
from sparsity_length.measuring.far_context import FarContext
from sparsity_length.models.interface import Prefix, Running, causal_visibility
from sparsity_length.synthetic import evaluation, tasks
from sparsity_length.synthetic.config import ATTENTION_SCHEMES, TaskConfig, TaskModelConfig
from sparsity_length.synthetic.evaluation import found_dependencies, generate
from sparsity_length.synthetic.models import TaskLM
from sparsity_length.synthetic.schemes import Dape, Scheme, scheme_of
from sparsity_length.synthetic.tasks import (
    BEST_LOSS_OF_CUES,
    CUES_VOCABULARY,
    FLIP_PROBABILITY,
    TASKS,
    Example,
    of_test_examples,
)
from sparsity_length.synthetic.train import of_training_step
from sparsity_length.training.positions import POSITION_SCHEMES

CUES = [name for name in TASKS if name.startswith("cues_")]
"""Their dependencies leave something open, so they have tests of their own."""


def test_the_worked_examples_are_true() -> None:
    result = doctest.testmod(tasks)
    assert result.attempted >= 25 and result.failed == 0


@pytest.mark.parametrize("name", [name for name in TASKS if name not in CUES])
def test_the_dependency_set_decides_the_target_and_each_of_it_is_needed(name: str) -> None:
    """Among many examples, equal tokens at the dependencies mean equal targets; without any one, not."""
    task = TASKS[name]
    # Which target of the response it is may matter too: the first of a parity has one dependency fewer.
    decided: dict[tuple[int, tuple[int, ...]], int] = {}
    possible: dict[tuple[int, int, tuple[int, ...]], set[int]] = defaultdict(set)
    num_met_again = 0
    sparsity = 3 if task.most_k else None
    for example in task.draw(8 if sparsity else 4, [sparsity] * 1500, np.random.default_rng(0)):
        targets = example.token_ids_S[example.num_prompt_tokens :].tolist()
        for index, (places, target) in enumerate(zip(example.dependencies, targets, strict=True)):
            known = tuple(example.token_ids_S[list(places)].tolist())
            num_met_again += (index, known) in decided
            assert decided.setdefault((index, known), target) == target
            for left_out in range(len(places)):
                possible[index, left_out, known[:left_out] + known[left_out + 1 :]].add(target)
    assert num_met_again > 400
    undecided = {(index, left_out) for (index, left_out, _), targets in possible.items() if len(targets) > 1}
    needed = {(index, left_out) for index, left_out, _ in possible}
    if name.startswith("variable_assignment"):
        # Names repeat too seldom to show it for the copied tokens; "=" always follows.
        needed = set()
    if name in ("addition", "addition_padded"):
        # Sets of five digits repeat too seldom; the first and the last digit of the sum have fewer.
        needed = {(index, left_out) for index, left_out, others in possible if len(others) < 3}
    if name.startswith("sparse_"):
        # A mark is the same token in every example: what it decides is which bits count.
        needed = {(index, left_out) for index, left_out in needed if left_out % 2}
    assert needed <= undecided


@pytest.mark.parametrize(
    "sparsity", [1, 4, *(pytest.param(sparsity, marks=pytest.mark.slow) for sparsity in (7, 8))]
)
@pytest.mark.parametrize("name", [name for name in TASKS if "sparse_" in name and "scratchpad" not in name])
def test_both_answers_of_marked_bits_are_as_likely(name: str, sparsity: int) -> None:
    """Whatever k is; those with a scratchpad are sparse_parity's."""
    examples = TASKS[name].draw(18, [sparsity] * 1500, np.random.default_rng(0))
    assert np.mean([example.token_ids_S[-1] for example in examples]) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("name", CUES)
def test_cues_stand_anywhere_and_their_posterior_is_right(name: str) -> None:
    """Over many examples the answer is as likely as its posterior says: the mean loss is the best one."""
    size = 64
    number = int(name.removeprefix("cues_"))
    outcomes = []
    for example in TASKS[name].draw(size, [None] * 1000, np.random.default_rng(0)):
        (places,) = example.dependencies
        *prompt, answer = example.token_ids_S.tolist()
        assert [place for place, token in enumerate(prompt) if 16 <= token < 16 + 112] == list(places)
        assert len(places) == number and example.num_prompt_tokens == len(prompt) == size
        ids = example.coupled_ids_S
        assert sorted(ids[list(places)]) == list(range(size - 1 - number, size - 1))
        assert (np.delete(ids, places) == np.delete(np.arange(size + 1), places)).all()
        outcomes.append((-example.log_posterior_V[answer], places[0]))
    losses, first_places = np.transpose(outcomes)
    assert np.mean(losses) == pytest.approx(np.log(2), abs=4 * np.std(losses) / np.sqrt(len(losses)))
    assert first_places.min() == 0


@pytest.mark.parametrize("name", CUES)
def test_the_posterior_and_the_best_loss_of_cues_are_those_of_all_cases_counted(name: str) -> None:
    """Every answer with every flip of its bits: the posterior by Bayes, and the mean loss."""
    k = int(name.removeprefix("cues_"))
    posteriors = {}
    for example in TASKS[name].draw(k + 1, [None] * 200, np.random.default_rng(0)):
        # Named as the number of cues, which of them it is, and its token, whose last 4 / k bits count.
        cues = sorted(CUES_VOCABULARY[token].split(".") for token in example.token_ids_S[:k])
        told = sum(
            (int(token, 16) % 2 ** (4 // k)) << (4 - (4 // k) * (int(at) + 1)) for _, at, token in cues
        )
        posteriors[told] = np.exp(example.log_posterior_V[-16:])
    best_loss = 0.0
    for told in range(16):
        num_flipped = np.array([(told ^ answer).bit_count() for answer in range(16)])
        by_answer = FLIP_PROBABILITY**num_flipped * (1 - FLIP_PROBABILITY) ** (4 - num_flipped) / 16
        posterior = by_answer / by_answer.sum()
        np.testing.assert_allclose(posteriors[told], posterior, atol=1e-12)
        best_loss -= (by_answer * np.log(posterior)).sum()
    assert best_loss == pytest.approx(BEST_LOSS_OF_CUES, abs=1e-12)


@pytest.mark.parametrize("seeds", [(0, 1, 2, 20, (1 << 32) - 1), (1 << 32, (20 << 32) + 1, (1 << 63) - 1)])
def test_streams_of_two_purposes_are_never_one(seeds: tuple[int, ...]) -> None:
    streams = [of_test_examples(*cell) for cell in product((1, 2, 20), (None, 1, 2, 20))]
    streams += [of_training_step(*of) for of in product(seeds, (0, 1, 2, 20))]
    assert len({str(stream.bit_generator.state["state"]) for stream in streams}) == 12 + 4 * len(seeds)


def ids_of(
    scheme: str, num_examples: int, num_position_ids: int, seed: int = 0, spread: str = "contiguous"
) -> np.ndarray:
    example = Example(np.zeros(5, int), 1, (), np.array([1, 2, 0, 1, 2]))
    config = TaskConfig("copy", scheme, num_position_ids=num_position_ids, spread_of_coupled_ids=spread)
    return config.ids_of([example] * num_examples, np.random.default_rng(seed))[1]


def test_every_start_that_fits_is_as_likely_and_no_other() -> None:
    starts, counts = np.unique(ids_of("coupled", 3000, 5, seed=1), axis=0, return_counts=True)
    assert starts.tolist() == [[1, 2, 0, 1, 2], [2, 3, 1, 2, 3], [3, 4, 2, 3, 4]]
    assert (abs(counts - 1000) < 130).all()  # a standard deviation of 26
    assert ids_of("coupled", 1, 3).tolist() == [[1, 2, 0, 1, 2]]  # where only one fits


def test_a_spread_parts_coupled_ids_by_one_skip() -> None:
    # With 5 position IDs: no skip and starts 0 to 2; a skip of 1 or 2 before coupled ID 1 or 2 and what fits.
    found = {"".join(map(str, ids)) for ids in ids_of("coupled", 1000, 5, spread="pose")}
    assert found == {"12012", "13013", "14014", "23023", "23123", "24124", "34034", "34134", "34234"}


def test_predicted_positions_are_coupled_in_training_and_others_ignore_the_coupling() -> None:
    assert ids_of("predicted", 4, 40).tolist() == ids_of("coupled", 4, 40).tolist()
    for scheme, draw in POSITION_SCHEMES.items():
        assert ids_of(scheme, 4, 9).tolist() == draw(4, 5, 9, np.random.default_rng(0)).tolist()


TOKENS = np.array([5, 1, 2, 6, 7, 8, 3])  # the answer, 3, is sure where 1 and 2 are both seen


class Planted(EvidenceLM):
    config = TaskConfig("copy", "contiguous")

    def at(self, position_ids_L: torch.Tensor) -> "Planted":
        return self


def positions(rule: str, ablation: str, *others: np.ndarray) -> list[int]:
    model = Planted(10, 3, lambda seen: 4.0 if {1, 2} <= seen else 0.0)
    examples = [Example(tokens_S, 6, ((1, 2),), None) for tokens_S in (TOKENS, *others)]
    tables = found_dependencies(model, examples, np.random.default_rng(0), [rule], 2)  # type: ignore[arg-type]
    rows = tables["found_dependencies"].query("example_index == 0")
    assert rows["ablation"].unique().tolist() == ["mask", "swap"]
    return sorted(rows[rows["ablation"] == ablation]["context_position"])


@pytest.mark.parametrize("rule", ["leave_one_out", "leave_one_out_divergence"])
def test_what_must_be_there_is_found_by_removing_it_and_by_a_mean_over_other_examples(rule: str) -> None:
    assert positions(rule, "mask", TOKENS) == [1, 2]
    # The first example replaces the 1 by itself and says nothing of it; the second tells.
    says_nothing = np.array([5, 1, 9, 6, 7, 8, 3])
    assert positions(rule, "swap", says_nothing) == [2, 3]  # of the others the nearest
    assert positions(rule, "swap", says_nothing, np.array([5, 9, 9, 6, 7, 8, 3])) == [1, 2]


def test_no_example_stands_in_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = Mock(wraps=FarContext)
    monkeypatch.setattr(evaluation, "FarContext", contexts)
    positions("leave_one_out", "mask", TOKENS + 1, np.roll(TOKENS, 1))
    swapped = [call for call in contexts.call_args_list if "search_swaps_BL" in call.kwargs]
    is_itself = [(call.kwargs["search_swaps_BL"] == call.args[3]).all(axis=1).any() for call in swapped]
    assert is_itself == [False] * 3
    with pytest.raises(InputError, match="two examples or more"):
        positions("leave_one_out", "mask")


NUM_PROMPT = 7
NUM_TOKENS = 13
ROWS = torch.arange(NUM_TOKENS)[None]
TEXTS = torch.randint(11, (5, NUM_TOKENS), generator=torch.Generator().manual_seed(1))
TOKEN_IDS = TEXTS[:1]
FAMILIES = ("gpt_neox", "olmo")
STATES_ATOL = 1e-4
"""Hidden states are of order 1; with AVX-512 and AVX2 they agree to 1e-5, with SSE alone to 4e-5."""


def task_model(positions: str, name: str = "gpt_neox") -> TaskLM:
    trunk = TaskModelConfig(
        name,
        width=32,
        rotary_fraction=0.25 if positions in ATTENTION_SCHEMES else 0.5,
        num_keys=3 if positions == "sparse" else None,
    )
    model = TaskLM(TaskConfig("copy", positions, num_position_ids=40, model=trunk))
    for parameter in model._model.parameters():
        # Initial weights are so small that nothing would depend on anything.
        parameter.data.mul_(8.0 if positions != "dape_alibi" else 4.0)
    return model


def gapped_ids(batch_size: int) -> torch.Tensor:
    """Coupled-looking IDs, other ones in each sequence."""
    return torch.tensor([3, 4, 5, 9, 10, 11, 0, 9, 10, 3, 4, 30, 31]) + torch.arange(batch_size)[:, None]


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_the_stock_model(name: str) -> None:
    model = task_model("contiguous", name)
    found = model.logits(model.hidden_states(TEXTS, ROWS, None, None))
    stock = model._trunk._model
    if name != "olmo":
        stock.set_attn_implementation("sdpa")  # the library's, not ours
    torch.testing.assert_close(found, stock(TEXTS).logits, rtol=0, atol=1e-5)
    # As checkpoints have them.
    assert all(name.startswith("trunk.model.") for name in model._model.state_dict())


@pytest.mark.parametrize(
    ("positions", "name"),
    [
        *product(("coupled", "predicted"), FAMILIES),
        *product(ATTENTION_SCHEMES, ("gpt_neox",)),
    ],
)
def test_generation_with_a_cache_equals_one_full_pass(positions: str, name: str) -> None:
    model = task_model(positions, name)
    prompts = TEXTS[:, :NUM_PROMPT]
    ids = ROWS.expand(5, -1) if positions in ATTENTION_SCHEMES else gapped_ids(5)
    logits, response_ids = generate(model, prompts, ids)
    response = logits.argmax(-1)
    read_ids = torch.cat([ids[:, :NUM_PROMPT], response_ids], 1)
    of_steps = model.hidden_states(torch.cat([prompts, response], 1), read_ids, None, None)[
        :, NUM_PROMPT - 1 : -1
    ]
    # Weights eight times as large magnify what rounding differs by.
    torch.testing.assert_close(logits, model.logits(of_steps), rtol=0, atol=1e-3)
    if positions == "predicted":
        ids = torch.cat([ids[:, :NUM_PROMPT], model.position_logits(of_steps).argmax(-1)], 1)
    assert torch.equal(read_ids, ids)
    assert len(set(map(tuple, response.tolist()))) > 1, "a constant would not show a wrong cache"


@pytest.mark.parametrize(
    ("positions", "is_blind"),
    [("nope", True), ("alibi", False), ("dape_nope", True), ("dape_alibi", False), ("sparse", False)],
)
def test_what_a_scheme_knows_of_positions(positions: str, is_blind: bool) -> None:
    swapped_ids = TOKEN_IDS[:, [1, 0, *range(2, NUM_TOKENS)]]
    read = ((TOKEN_IDS, ROWS), (TOKEN_IDS, ROWS + 20), (TOKEN_IDS, 2 * ROWS), (swapped_ids, ROWS))
    plain, *others = (task_model(positions).hidden_states(*texts, None, None)[:, -1] for texts in read)
    same = [torch.allclose(plain, other, atol=1e-3) for other in others]
    assert same == [True, is_blind, False], "the mask tells order"


def scores_of(scheme: Scheme, scores: list[list[list[float]]]) -> torch.Tensor:
    scores_1HSK = torch.tensor([scores], dtype=torch.float32)
    visible = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()
    running = Running(Prefix((), torch.zeros(1, 0)), torch.tensor([[0, 1, 5]]), None, None, None)
    change = scheme(running, running.position_ids_BK).change
    parts = []
    for row in range(3):  # as if each row were a block
        rows = slice(row, row + 1)
        scores_1HRK = scores_1HSK[:, :, rows, : row + 1]
        seen = visible[:, :, rows, : row + 1]
        changed = change(0, rows, scores_1HRK, seen, scores_1HRK, scores_1HSK).masked_fill(~seen, 0)
        parts.append(pad(changed, (0, 2 - row)))
    return torch.cat(parts, dim=2)[0]


def test_the_largest_scores_by_hand() -> None:
    # The row's best two of three; rows that see fewer keep them all, and the future is no candidate.
    found = scores_of(scheme_of("sparse", TaskModelConfig(num_keys=2)), [[[1, 9, 9], [2, 3, 9], [5, 4, 6]]])
    assert found.tolist() == [[[1, 0, 0], [2, 3, 0], [5, -torch.inf, 6]]]


def test_dape_by_hand() -> None:
    dape = Dape(2, 1, has_alibi=True)
    first, _, last = dape.of_layers[0]
    for parameter in dape.parameters():
        parameter.data.zero_()
    # Channel 0 adds score of head 0 two keys before, 10 x score of head 1, 100 x bias of head 1.
    first.weight.data[0, [0, 1, 3], 0, [0, 2, 2]] = torch.tensor([1.0, 10.0, 100.0])
    last.weight.data[:2, 0] = torch.tensor([1.0, 2.0])[:, None, None]
    found = scores_of(dape, [[[1, 7, 7], [2, 3, 7], [4, 5, 6]], [[1, 7, 7], [1, 1, 7], [1, 2, 3]]])
    # Slopes of two heads 1/16, 1/256; IDs 0 1 5, so that the last row's distances are 5, 4, 0. Channel 0 is
    # 10 - 500/256, 20 - 400/256, 30 + 4; the first score 4 - 5/16 + 10 - 500/256, the last 3 + 2 x 34.
    expected = torch.tensor([[11.734375, 23.1875, 40.0], [17.07421875, 38.859375, 71.0]])
    torch.testing.assert_close(found[:, 2], expected)


@pytest.fixture(
    params=[
        *product(("predicted", "contiguous"), FAMILIES),
        *product(("nope", "alibi", "sparse"), ("gpt_neox",)),
    ],
    ids="-".join,
)
def lm(request: pytest.FixtureRequest) -> TaskLM:
    return task_model(*request.param).at(gapped_ids(1)[0])


def test_places_are_read_at_the_examples_ids(lm: TaskLM) -> None:
    expected = lm.at(torch.arange(40)).hidden_states(TOKEN_IDS, gapped_ids(1), None, None)
    states = lm.hidden_states(TOKEN_IDS, ROWS, None, torch.tensor([[4, 9]]))
    torch.testing.assert_close(states, expected[:, [4, 9]], rtol=0, atol=STATES_ATOL)


def test_leaving_a_token_out_is_masking_it(lm: TaskLM) -> None:
    kept = [place for place in range(NUM_TOKENS) if place != 3]
    visible = causal_visibility(NUM_TOKENS, TOKEN_IDS.device)
    visible[:, :, 3] = False
    visible[:, 3, 3] = True  # its own row, at which nobody looks, must see something
    masked = lm.hidden_states(TOKEN_IDS, ROWS, visible, torch.tensor([[12]]))
    left_out = lm.hidden_states(TOKEN_IDS[:, kept], torch.tensor([kept]), None, torch.tensor([[11]]))
    torch.testing.assert_close(left_out, masked, rtol=0, atol=STATES_ATOL)


def test_a_shared_prefix_changes_nothing(lm: TaskLM) -> None:
    whole, prefix = lm.read(TOKEN_IDS, ROWS, None, None)
    states = lm.hidden_states(TOKEN_IDS[:, 5:].expand(3, -1), ROWS[:, 5:], None, None, prefix.first(5))
    torch.testing.assert_close(states, whole[:, 5:].expand(3, -1, -1), rtol=0, atol=STATES_ATOL)
