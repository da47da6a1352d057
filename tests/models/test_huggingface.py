"""Hugging Face models do what they are told: the interface's promises, family by family."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hugging_face_families import FAMILIES, LEARNED_POSITIONS, VOCABULARY_SIZE, WINDOW, make_model
from transformers import AutoConfig, AutoModelForImageTextToText

from sparsity_length.models.huggingface import HuggingFaceCausalLM, as_causal_lm, load_hugging_face
from sparsity_length.models.interface import Prefix, causal_visibility

CPU = torch.device("cpu")
NUM_TOKENS = 20
NUM_PAST = 8
ROWS = torch.arange(NUM_TOKENS)[None]
TOLERANCE = 2e-5


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def lm(family: str) -> HuggingFaceCausalLM:
    return HuggingFaceCausalLM(make_model(family), NUM_TOKENS)


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY_SIZE, shape, generator=torch.Generator().manual_seed(1))


def logits_of(lm: HuggingFaceCausalLM, *arguments: object) -> torch.Tensor:
    return lm.logits(lm.hidden_states(*arguments))


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one - other).abs().max().item()


@torch.inference_mode()
def test_tokens_ids_and_rows_are_those_it_is_given(family: str, lm: HuggingFaceCausalLM) -> None:
    token_ids = tokens(2, NUM_TOKENS)
    # The same weights, whose attention the library writes out in plain tensor operations.
    model = make_model(family, attention="eager")
    stock = model(input_ids=token_ids).logits
    everything = lm.hidden_states(token_ids, ROWS, None, None)
    logits = lm.logits(everything)
    assert distance(logits, stock) < TOLERANCE, "the logits are the model's own"
    assert stock.std() > 0.1 and lm.vocabulary_size == VOCABULARY_SIZE

    left_out = [3, 4, 11]
    kept = torch.tensor([row for row in range(NUM_TOKENS) if row not in left_out])
    gathered = logits_of(lm, token_ids[:, kept], kept[None], None, None)
    visible = causal_visibility(NUM_TOKENS, CPU)
    visible[..., left_out] = False
    hidden = logits_of(lm, token_ids, ROWS, visible, None)
    assert distance(gathered, hidden[:, kept]) < TOLERANCE, "leaving tokens out equals hiding them"
    assert distance(gathered, logits[:, kept]) > 1e-2, "they were looked at before"
    # Told which tokens to hide, the library builds the mask itself and cuts its windows into it.
    is_kept = visible[:, -1].expand(2, -1)
    masked = model(input_ids=token_ids, position_ids=ROWS.expand(2, -1), attention_mask=is_kept.long()).logits
    assert distance(gathered, masked[:, kept]) < TOLERANCE, "its own way of hiding them is the same"
    compact = logits_of(lm, token_ids[:, kept], ROWS[:, : len(kept)], None, None)
    shortened = model(input_ids=token_ids[:, kept]).logits
    assert distance(compact, shortened) < TOLERANCE, "closed up, they are the shortened text"

    assert distance(logits_of(lm, token_ids, 2 * ROWS, None, None), logits) > 1e-2, "IDs and not rows count"
    if family not in LEARNED_POSITIONS:
        # Only differences of IDs count, also far beyond max_position_embeddings.
        assert distance(logits_of(lm, token_ids, ROWS + 100, None, None), logits) < 1e-4

    chosen = lm.hidden_states(token_ids, ROWS, None, torch.tensor([[1, 5], [0, 19]]))
    assert torch.equal(chosen, torch.stack([everything[0, [1, 5]], everything[1, [0, 19]]])), "query rows"
    assert torch.equal(lm.hidden_states(token_ids, ROWS, None, torch.tensor([[7]])), everything[:, 7:8])


def test_a_window_counts_position_ids_and_not_the_tokens_that_are_left() -> None:
    lm = HuggingFaceCausalLM(make_model("mistral_window"))
    token_ids = tokens(1, NUM_TOKENS)
    near = torch.arange(WINDOW, NUM_TOKENS)  # out of sight of token 0, in all layers
    with_far = torch.cat((torch.zeros(1, dtype=torch.int64), near))
    alone = logits_of(lm, token_ids[:, near], near[None], None, None)
    beside = logits_of(lm, token_ids[:, with_far], with_far[None], None, None)[:, 1:]
    closed_up = logits_of(lm, token_ids[:, with_far], ROWS[:, : len(with_far)], None, None)[:, 1:]
    assert distance(beside, alone) < TOLERANCE < 1e-2 < distance(closed_up, alone)
    wide = HuggingFaceCausalLM(make_model("mistral_window"), WINDOW)
    assert (lm.window, wide.window) == (WINDOW, None), "up to its width a window cuts nothing"


def test_loading_says_how_many_layers_have_windows(caplog: pytest.LogCaptureFixture) -> None:
    as_causal_lm(make_model("gemma3"), "gemma", WINDOW)
    assert not caplog.messages, "up to its width a window cuts nothing"
    as_causal_lm(make_model("gemma3"), "gemma", NUM_TOKENS)
    assert [line.partition(":")[0] for line in caplog.messages] == [
        f"1 of the 2 layers of gemma have windows of {WINDOW} positions"
    ]


def test_a_shared_prefix_is_as_good_as_reading_it(lm: HuggingFaceCausalLM) -> None:
    token_ids = tokens(3, NUM_TOKENS)
    token_ids[:, :NUM_PAST] = token_ids[0, :NUM_PAST]
    visible = causal_visibility(NUM_TOKENS, CPU)
    visible[:, :NUM_PAST, 2:5] = False  # hidden within the prefix
    visible[..., 10:12] = False  # and from all that follow
    beyond = causal_visibility(NUM_TOKENS, CPU)
    beyond[:, NUM_PAST:, 5] = False  # not all of the prefix is seen: copies are needed

    def read(num_rows: int, mask: torch.Tensor | None) -> Prefix:
        return lm.read(token_ids[:1, :num_rows], ROWS[:, :num_rows], mask, torch.tensor([[3, 7]]))[1]

    prefix = read(12, None).first(NUM_PAST)
    before = [part.clone() for layer in prefix.keys_and_values for part in layer]
    partial = read(NUM_PAST, visible[:, :NUM_PAST, :NUM_PAST])
    later = visible[:, NUM_PAST:, NUM_PAST:]
    for past, mask, of_all in (
        (prefix, None, None),
        (partial, later, visible),
        (prefix, beyond[:, NUM_PAST:], beyond),
    ):
        expected = logits_of(lm, token_ids, ROWS, of_all, None)[:, NUM_PAST:]
        found = logits_of(lm, token_ids[:, NUM_PAST:], ROWS[:, NUM_PAST:], mask, None, past)
        assert distance(found, expected) < TOLERANCE
    after = [part for layer in prefix.keys_and_values for part in layer]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


@torch.inference_mode()
def test_a_saved_model_is_loaded_as_it_was(family: str, tmp_path: Path) -> None:
    model = make_model(family, attention="eager")
    model.save_pretrained(tmp_path)
    token_ids = tokens(1, NUM_TOKENS)
    expected = model(input_ids=token_ids).logits
    for dtype in (torch.float32, torch.bfloat16):
        loaded = load_hugging_face(tmp_path, device=CPU, dtype=dtype, num_positions=NUM_TOKENS)
        found = logits_of(loaded, token_ids, ROWS, None, None)
        assert found.dtype == loaded.dtype == dtype
        if dtype == torch.float32:
            assert distance(found, expected) < TOLERANCE
        else:  # the median row: rounding may send a row of Mixtral to another expert
            assert (found - expected).abs().amax(-1).median() < 0.05 * expected.abs().max()


_TEXT = FAMILIES["llama"][1]
_PICTURES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("kind", "text", "pictures"),
    [
        (
            "qwen2_5_vl",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}},
            {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 32},
        ),
        (
            "llama4",
            {"intermediate_size_mlp": 48, "num_local_experts": 2},
            _PICTURES | {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16},
        ),
    ],
)
@torch.inference_mode()
def test_a_model_of_pictures_and_text_is_its_text_s(
    kind: str, text: dict[str, Any], pictures: dict[str, Any], tmp_path: Path
) -> None:
    config = AutoConfig.for_model(kind, text_config=_TEXT | text, vision_config=pictures)
    torch.manual_seed(0)
    whole = AutoModelForImageTextToText.from_config(config).float().eval()
    whole.save_pretrained(tmp_path)
    token_ids = tokens(1, NUM_TOKENS)
    # The library's own Llama 4 for pictures fails on text alone.
    stock = whole.language_model if kind == "llama4" else whole
    stock.set_attn_implementation("eager")
    loaded = load_hugging_face(tmp_path, device=CPU, num_positions=NUM_TOKENS)
    found = logits_of(loaded, token_ids, ROWS, None, None)
    assert distance(found, stock(input_ids=token_ids, use_cache=False).logits) < 1e-5
