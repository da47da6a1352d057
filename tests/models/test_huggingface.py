"""Hugging Face models do what they are told: the interface's promises, family by family."""

from pathlib import Path

import pytest
import torch
from hugging_face_families import FAMILIES, LEARNED_POSITIONS, VOCABULARY_SIZE, make_model
from transformers import PreTrainedModel

from pipeline.models.huggingface import HuggingFaceCausalLM, load_hugging_face

CPU = torch.device("cpu")
NUM_TOKENS = 20
TOLERANCE = 2e-5


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def lm(family: str) -> HuggingFaceCausalLM:
    return HuggingFaceCausalLM(make_model(family))


@pytest.fixture(scope="module")
def eager(family: str) -> PreTrainedModel:
    """The same weights, whose attention the library writes out in plain tensor operations."""
    return make_model(family, attention="eager")


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY_SIZE, shape, generator=torch.Generator().manual_seed(1))


def rows(num_rows: int = NUM_TOKENS) -> torch.Tensor:
    return torch.arange(num_rows)[None]


def logits_of(lm: HuggingFaceCausalLM, *arguments: object) -> torch.Tensor:
    return lm.logits(lm.hidden_states(*arguments))


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one - other).abs().max().item()


@torch.inference_mode()
def test_logits_are_the_models_own(lm: HuggingFaceCausalLM, eager: PreTrainedModel) -> None:
    token_ids = tokens(2, NUM_TOKENS)
    expected = eager(input_ids=token_ids).logits
    assert distance(logits_of(lm, token_ids, rows(), None, None), expected) < TOLERANCE
    assert expected.std() > 0.1
    assert lm.vocabulary_size == VOCABULARY_SIZE


def test_leaving_tokens_out_equals_hiding_them(lm: HuggingFaceCausalLM) -> None:
    token_ids, left_out = tokens(2, NUM_TOKENS), {3, 4, 11}
    kept = torch.tensor([row for row in range(NUM_TOKENS) if row not in left_out])
    gathered = logits_of(lm, token_ids[:, kept], kept[None], None, None)
    visible = torch.ones(1, NUM_TOKENS, NUM_TOKENS, dtype=torch.bool).tril()
    visible[..., sorted(left_out)] = False
    hidden = logits_of(lm, token_ids, rows(), visible, None)
    assert distance(gathered, hidden[:, kept]) < TOLERANCE
    everything = logits_of(lm, token_ids, rows(), None, None)
    assert distance(gathered, everything[:, kept]) > 1e-2  # the tokens left out were looked at before


def test_ids_and_not_rows_are_the_positions(family: str, lm: HuggingFaceCausalLM) -> None:
    token_ids = tokens(1, NUM_TOKENS)
    near = logits_of(lm, token_ids, rows(), None, None)
    assert distance(logits_of(lm, token_ids, 2 * rows(), None, None), near) > 1e-2
    if family not in LEARNED_POSITIONS:
        # Only differences of IDs count, also far beyond max_position_embeddings.
        assert distance(logits_of(lm, token_ids, rows() + 100, None, None), near) < 1e-4


def test_a_shared_prefix_is_as_good_as_reading_it(lm: HuggingFaceCausalLM) -> None:
    token_ids, num_past = tokens(3, NUM_TOKENS), 8
    token_ids[:, :num_past] = token_ids[0, :num_past]
    prefix = lm.read(token_ids[:1, :12], rows(12), None, None)[1].first(num_past)
    before = [part.clone() for layer in prefix.keys_and_values for part in layer]
    expected = logits_of(lm, token_ids, rows(), None, None)[:, num_past:]
    rest, ids = token_ids[:, num_past:], rows()[:, num_past:]
    assert distance(logits_of(lm, rest, ids, None, None, prefix), expected) < TOLERANCE
    visible = torch.ones(1, NUM_TOKENS, NUM_TOKENS, dtype=torch.bool).tril()
    visible[:, :num_past, 2:5] = False
    visible[..., 10:12] = False
    hidden = logits_of(lm, token_ids, rows(), visible, None)[:, num_past:]
    # Rows 2 to 4 hidden within the prefix, and rows 10 and 11 from all that follow it.
    states, partial = lm.read(
        token_ids[:1, :num_past], rows(num_past), visible[:, :num_past, :num_past], torch.tensor([[3, 7]])
    )
    assert states.shape[:2] == (1, 2)
    got = logits_of(lm, rest, ids, visible[:, num_past:, num_past:], None, partial)
    assert distance(got, hidden) < TOLERANCE
    after = [part for layer in prefix.keys_and_values for part in layer]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_query_rows_choose_among_all_rows(lm: HuggingFaceCausalLM) -> None:
    token_ids = tokens(2, NUM_TOKENS)
    everything = lm.hidden_states(token_ids, rows(), None, None)
    chosen = lm.hidden_states(token_ids, rows(), None, torch.tensor([[1, 5], [0, 19]]))
    assert torch.equal(chosen[0], everything[0, [1, 5]])
    assert torch.equal(chosen[1], everything[1, [0, 19]])
    for_all = lm.hidden_states(token_ids, rows(), None, torch.tensor([[7]]))
    assert torch.equal(for_all, everything[:, 7:8])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.inference_mode()
def test_a_saved_model_is_loaded_as_it_was(
    family: str, eager: PreTrainedModel, dtype: torch.dtype, tmp_path: Path
) -> None:
    eager.save_pretrained(tmp_path)
    loaded = load_hugging_face(tmp_path, device=CPU, dtype=dtype, num_positions=NUM_TOKENS)
    token_ids = tokens(1, NUM_TOKENS)
    expected = eager(input_ids=token_ids).logits
    got = logits_of(loaded, token_ids, rows(), None, None)
    assert got.dtype == dtype
    if dtype == torch.float32:
        assert distance(got, expected) < TOLERANCE
    else:  # the median row: rounding may send a row of Mixtral to another expert
        assert (got - expected).abs().amax(-1).median() < 0.05 * expected.abs().max()


def test_accelerate_may_place_the_layers(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    placed = load_hugging_face(tmp_path, device=CPU, device_map="auto", num_positions=NUM_TOKENS)
    here = HuggingFaceCausalLM(make_model("llama"))
    arguments = (tokens(1, NUM_TOKENS), rows(), None, None)
    assert distance(logits_of(placed, *arguments), logits_of(here, *arguments)) < TOLERANCE
