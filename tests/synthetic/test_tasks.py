"""Every task: its docstring's example, dependencies, position IDs; planted evidence is found.

Task models: the stock models, schemes of attention by hand, generation with a cache, measured contexts.
"""

import doctest
import math
from collections import defaultdict
from functools import partial
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hand_made_models import EvidenceLM

from sparsity_length.cli import InputError
from sparsity_length.measuring.far_context import FarContext
from sparsity_length.models.attention import alibi_slopes
from sparsity_length.models.interface import Predictions, Prefix, Running, causal_visibility
from sparsity_length.synthetic import evaluation, tasks
from sparsity_length.synthetic.config import TaskConfig, TaskModelConfig
from sparsity_length.synthetic.evaluation import found_dependencies, generate
from sparsity_length.synthetic.models import TaskLM
from sparsity_length.synthetic.schemes import ATTENTION_SCHEMES, Dape, Scheme, largest
from sparsity_length.synthetic.tasks import (
    BEST_LOSS_OF_CUES,
    CUES_VOCABULARY,
    FLIP_PROBABILITY,
    TASKS,
    Example,
    of_test_examples,
)
from sparsity_length.synthetic.train import of_training_step

CERTAIN = [name for name in TASKS if not name.startswith("cues_")]
"""Tasks whose dependencies leave nothing open; those of cues have tests of their own."""
CUES = [name for name in TASKS if name not in CERTAIN]


def targets_of(example: Example) -> list[int]:
    return example.token_ids_S[example.num_prompt_tokens :].tolist()


def test_the_worked_examples_are_true() -> None:
    result = doctest.testmod(tasks)
    assert result.attempted >= 25 and result.failed == 0


@pytest.mark.parametrize("name", CERTAIN)
def test_the_dependency_set_decides_the_target_and_each_of_it_is_needed(name: str) -> None:
    """Among many examples, equal tokens at the dependencies mean equal targets; without any one, not."""
    task = TASKS[name]
    # Which target of the response it is may matter too: the first of a parity has one dependency fewer.
    decided: dict[tuple[int, tuple[int, ...]], int] = {}
    possible: dict[tuple[int, int, tuple[int, ...]], set[int]] = defaultdict(set)
    num_met_again = 0
    sparsity = 3 if task.most_k else None
    for example in task.draw(8 if sparsity else 4, [sparsity] * 1500, np.random.default_rng(0)):
        for index, (places, target) in enumerate(zip(example.dependencies, targets_of(example), strict=True)):
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
@pytest.mark.parametrize("name", [name for name in TASKS if name.startswith("sparse_")])
def test_both_answers_of_marked_bits_are_as_likely(name: str, sparsity: int) -> None:
    """Whatever k is."""
    examples = TASKS[name].draw(18, [sparsity] * 1500, np.random.default_rng(0))
    answers = [targets_of(example)[-1] for example in examples]
    assert np.mean(answers) == pytest.approx(0.5, abs=0.05)


def test_the_last_partial_parity_is_that_of_all_marked_bits() -> None:
    names = ("sparse_parity", "sparse_parity_scratchpad")
    drawn = (TASKS[name].draw(8, [3] * 20, np.random.default_rng(0)) for name in names)
    for answer, written in zip(*drawn, strict=True):
        assert targets_of(written)[-1:] == targets_of(answer)


@pytest.mark.parametrize("name", CUES)
def test_cues_stand_anywhere_and_their_posterior_is_right(name: str) -> None:
    """Over many examples: the answer is as likely as its posterior says, the best loss what is stated."""
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
        posterior_V = np.exp(example.log_posterior_V)
        assert posterior_V.sum() == pytest.approx(1)
        gain = posterior_V[answer] - (posterior_V**2).sum()  # 0 in the mean where it is right
        outcomes.append((-example.log_posterior_V[answer], gain, places[0]))
    losses, gains, first_places = np.transpose(outcomes)
    for values, expected in ((losses, np.log(2)), (gains, 0)):
        assert np.mean(values) == pytest.approx(expected, abs=4 * np.std(values) / np.sqrt(len(values)))
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
    numbers = (1, 2, 20)
    streams = [of_test_examples(*cell) for cell in product(numbers, (None, *numbers))]
    streams += [of_training_step(seed, step) for seed, step in product(seeds, (0, *numbers))]
    states = {str(stream.bit_generator.state["state"]) for stream in streams}
    assert len(states) == 12 + 4 * len(seeds)


@pytest.mark.parametrize(("name", "size"), [("variable_assignment", 300), ("cues_4", 2), ("sparse_or", 3)])
def test_a_size_that_a_task_lacks_is_refused(name: str, size: int) -> None:
    with pytest.raises(InputError, match=f"size {size}"):
        TASKS[name].draw(size, [1], np.random.default_rng(0))


COUPLED = np.array([1, 2, 0, 1, 2])


def ids_of(
    scheme: str, num_examples: int, num_position_ids: int, seed: int = 0, spread: str = "contiguous"
) -> np.ndarray:
    examples = [Example(np.zeros(5, int), 1, (), COUPLED)] * num_examples
    config = TaskConfig("copy", scheme, num_position_ids=num_position_ids, spread_of_coupled_ids=spread)
    return config.ids_of(examples, np.random.default_rng(seed))[1]


def test_every_start_that_fits_is_as_likely_and_no_other() -> None:
    starts, counts = np.unique(ids_of("coupled", 3000, 5, seed=1), axis=0, return_counts=True)
    assert starts.tolist() == [[1, 2, 0, 1, 2], [2, 3, 1, 2, 3], [3, 4, 2, 3, 4]]
    assert (abs(counts - 1000) < 130).all()  # a standard deviation of 26
    assert ids_of("coupled", 1, 3).tolist() == [COUPLED.tolist()]


def test_a_spread_parts_coupled_ids_by_one_skip() -> None:
    # With 5 position IDs: no skip and starts 0 to 2; a skip of 1 or 2 before coupled ID 1 or 2 and what fits.
    of_five = ids_of("coupled", 1000, 5, spread="pose")
    found = sorted({"".join(map(str, ids)) for ids in of_five})
    assert " ".join(found) == "12012 13013 14014 23023 23123 24124 34034 34134 34234"
    of_forty = ids_of("coupled", 3000, 40, spread="pose")
    assert set((of_forty[:, 1] - of_forty[:, 2]).tolist()) == set(range(2, 40))


def test_coupled_schemes_keep_the_coupling_and_others_ignore_it() -> None:
    for scheme in ("coupled", "predicted"):
        ids = ids_of(scheme, 4, 40)
        assert (ids - ids[:, 2:3] == COUPLED).all() and len(set(ids[:, 2].tolist())) > 1
    assert ids_of("contiguous", 2, 9).tolist() == [[0, 1, 2, 3, 4]] * 2
    pose = ids_of("pose", 400, 9)
    # No skip, or one of 1 to 4 before any of the last four tokens.
    assert pose.max() == 8 and (pose[:, 0] == 0).all() and len({tuple(row) for row in pose.tolist()}) == 17
    randomized = ids_of("randomized", 200, 9)
    assert randomized.max() == 8 and randomized[:, 0].max() > 0


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
    # The first example replaces the 1 by itself and says nothing of it; the second does.
    says_nothing = np.array([5, 1, 9, 6, 7, 8, 3])
    tells = np.array([5, 9, 9, 6, 7, 8, 3])
    assert positions(rule, "swap", says_nothing) == [2, 3]  # of the others the nearest
    assert positions(rule, "swap", says_nothing, tells) == [1, 2]


def test_no_example_stands_in_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = Mock(wraps=FarContext)
    monkeypatch.setattr(evaluation, "FarContext", contexts)
    positions("leave_one_out", "mask", TOKENS + 1, np.roll(TOKENS, 1))
    swapped = [call for call in contexts.call_args_list if "search_swaps_BL" in call.kwargs]
    assert len(swapped) == 3
    for call in swapped:
        assert not (call.kwargs["search_swaps_BL"] == call.args[3]).all(axis=1).any()
    with pytest.raises(InputError, match="two examples or more"):
        positions("leave_one_out", "mask")


V = 11
NUM_PROMPT = 7
NUM_TOKENS = 13
ROWS = torch.arange(NUM_TOKENS)[None]
FAMILIES = ("gpt_neox", "olmo")
STATES_ATOL = 1e-4
"""Hidden states are of order 1; with AVX-512 and AVX2 they agree to 1e-5, with SSE alone to 4e-5."""


def task_model(positions: str, name: str = "gpt_neox") -> TaskLM:
    rotary_fraction = 0.25 if positions in ATTENTION_SCHEMES else 0.5
    num_keys = 3 if positions == "sparse" else None
    trunk = TaskModelConfig(name, width=32, rotary_fraction=rotary_fraction, num_keys=num_keys)
    model = TaskLM(TaskConfig("copy", positions, num_position_ids=40, model=trunk))
    with torch.no_grad():  # initial weights are so small that nothing would depend on anything
        for parameter in model._model.parameters():
            parameter.mul_(8.0 if positions != "dape_alibi" else 4.0)
    return model


def token_ids_of(batch_size: int, num_rows: int) -> torch.Tensor:
    return torch.randint(V, (batch_size, num_rows), generator=torch.Generator().manual_seed(1))


TOKEN_IDS = token_ids_of(1, NUM_TOKENS)


def gapped_ids(batch_size: int) -> torch.Tensor:
    """Coupled-looking IDs, other ones in each sequence."""
    ids = torch.tensor([[3, 4, 5, 9, 10, 11, 0, 9, 10, 3, 4, 30, 31]])
    return ids + torch.arange(batch_size)[:, None]


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_the_stock_model(name: str) -> None:
    model = task_model("contiguous", name)
    token_ids = token_ids_of(3, 9)
    with torch.no_grad():
        found = model.logits(model._run(token_ids, torch.arange(9)[None], None, None)[0])
        stock = model._trunk._model
        if name != "olmo":
            stock.set_attn_implementation("sdpa")  # the library's, not ours
        torch.testing.assert_close(found, stock(token_ids).logits, rtol=0, atol=1e-5)
    assert all(
        name.startswith("trunk.model.") for name in model._model.state_dict()
    )  # as checkpoints have them


@pytest.mark.parametrize(
    ("positions", "name"),
    [
        *product(("coupled", "predicted"), FAMILIES),
        *product(ATTENTION_SCHEMES, ("gpt_neox",)),
    ],
)
def test_generation_with_a_cache_equals_one_full_pass(positions: str, name: str) -> None:
    model = task_model(positions, name)
    prompts = token_ids_of(5, NUM_PROMPT)
    ids = ROWS.expand(5, -1) if positions in ATTENTION_SCHEMES else gapped_ids(5)
    logits, response_ids = generate(model, prompts, ids)
    response = logits.argmax(-1)
    read_ids = torch.cat([ids[:, :NUM_PROMPT], response_ids], 1)
    with torch.no_grad():
        hidden, _ = model._run(torch.cat([prompts, response], 1), read_ids, None, None)
        of_steps = hidden[:, NUM_PROMPT - 1 : -1]
        # Weights eight times as large magnify what rounding differs by.
        torch.testing.assert_close(logits, model.logits(of_steps), rtol=0, atol=1e-3)
        is_predicted = positions == "predicted"
        next_ids = model.position_logits(of_steps).argmax(-1) if is_predicted else ids[:, NUM_PROMPT:]
    assert torch.equal(response_ids, next_ids)
    assert len(set(map(tuple, response.tolist()))) > 1, "a constant would not show a wrong cache"


def states(model: TaskLM, token_ids: torch.Tensor, ids: torch.Tensor = ROWS) -> torch.Tensor:
    return model.hidden_states(token_ids, ids, None, None)


@pytest.mark.parametrize(
    ("positions", "is_blind"),
    [("nope", True), ("alibi", False), ("dape_nope", True), ("dape_alibi", False), ("sparse", False)],
)
def test_what_a_scheme_knows_of_positions(positions: str, is_blind: bool) -> None:
    model = task_model(positions)
    plain = states(model, TOKEN_IDS)
    swapped = states(model, TOKEN_IDS[:, [1, 0, *range(2, NUM_TOKENS)]])
    assert torch.allclose(plain, states(model, TOKEN_IDS, ROWS + 20), atol=1e-3)
    assert torch.allclose(plain, states(model, TOKEN_IDS, 2 * ROWS), atol=1e-3) == is_blind
    assert not torch.allclose(plain[:, -1], swapped[:, -1], atol=1e-3), "the mask tells order"


def scores_of(scheme: Scheme, scores: list[list[list[float]]]) -> torch.Tensor:
    scores_1HSK = torch.tensor([scores], dtype=torch.float32)
    num_rows = scores_1HSK.shape[-1]
    visible = torch.ones(1, 1, num_rows, num_rows, dtype=torch.bool).tril()
    running = Running(Prefix((), torch.zeros(1, 0)), torch.tensor([[0, 1, 5][:num_rows]]), None, None, None)
    change = scheme(running, running.position_ids_BK).change
    changed = change(0, scores_1HSK, visible, scores_1HSK, scores_1HSK)
    return changed.masked_fill(~visible, 0)[0]


def test_the_largest_scores_by_hand() -> None:
    # The row's best two of three; rows that see fewer keep them all, and the future is no candidate.
    found = scores_of(partial(largest, 2), [[[1, 9, 9], [2, 3, 9], [5, 4, 6]]])
    assert found.tolist() == [[[1, 0, 0], [2, 3, 0], [5, -math.inf, 6]]]


def test_dape_by_hand() -> None:
    dape = Dape(2, 1, has_alibi=True)
    first, _, last = dape.of_layers[0]
    with torch.no_grad():
        for parameter in dape.parameters():
            parameter.zero_()
        # Channel 0 adds score of head 0 two keys before, 10 x score of head 1, 100 x bias of head 1.
        first.weight[0, 0, 0, 0] = 1
        first.weight[0, 1, 0, 2] = 10
        first.weight[0, 3, 0, 2] = 100
        last.weight[0, 0] = 1
        last.weight[1, 0] = 2
    scores = [[[1, 7, 7], [2, 3, 7], [4, 5, 6]], [[1, 7, 7], [1, 1, 7], [1, 2, 3]]]
    found = scores_of(dape, scores)
    # Slopes of two heads 1/16, 1/256; IDs 0 1 5, so that the last row's distances are 5, 4, 0.
    assert alibi_slopes(2).tolist() == [1 / 16, 1 / 256]
    near = [5 / 256, 4 / 256, 0]
    mixed = [10 - 100 * near[0], 20 - 100 * near[1], 30 + 4]
    leaky = [max(value, value / 100) for value in mixed]
    expected = torch.tensor(
        [
            [4 - 5 / 16 + leaky[0], 5 - 4 / 16 + leaky[1], 6 + leaky[2]],
            [1 - near[0] + 2 * leaky[0], 2 - near[1] + 2 * leaky[1], 3 + 2 * leaky[2]],
        ]
    )
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


def places(*chosen: int) -> torch.Tensor:
    return torch.tensor([chosen])


def test_losses_are_those_of_the_model_at_the_examples_ids(lm: TaskLM) -> None:
    targets = TOKEN_IDS[0, [5, 10]]
    plain = lm.at(torch.arange(40))
    hidden, _ = plain._run(TOKEN_IDS, gapped_ids(1), None, None)
    expected = torch.nn.functional.cross_entropy(plain.logits(hidden)[0, [4, 9]], targets, reduction="none")
    states = lm.hidden_states(TOKEN_IDS, ROWS, None, places(4, 9))
    losses = torch.as_tensor(Predictions.of(lm.logits(states[0])).losses(targets.numpy()))
    torch.testing.assert_close(losses, expected, rtol=0, atol=STATES_ATOL)


def test_leaving_a_token_out_is_masking_it(lm: TaskLM) -> None:
    kept = [place for place in range(NUM_TOKENS) if place != 3]
    visible = causal_visibility(NUM_TOKENS, TOKEN_IDS.device)
    visible[:, :, 3] = False
    visible[:, 3, 3] = True  # its own row, at which nobody looks, must see something
    masked = lm.hidden_states(TOKEN_IDS, ROWS, visible, places(12))
    left_out = lm.hidden_states(TOKEN_IDS[:, kept], places(*kept), None, places(11))
    torch.testing.assert_close(left_out, masked, rtol=0, atol=STATES_ATOL)


def test_a_shared_prefix_changes_nothing(lm: TaskLM) -> None:
    whole, prefix = lm.read(TOKEN_IDS, ROWS, None, None)
    rest = TOKEN_IDS[:, 5:].expand(3, -1)
    states = lm.hidden_states(rest, ROWS[:, 5:], None, places(0, 7), prefix.first(5))
    torch.testing.assert_close(states, whole[:, [5, 12]].expand(3, -1, -1), rtol=0, atol=STATES_ATOL)
