"""Hugging Face models do what they are told, family by family; those that cannot be measured are refused."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hugging_face_families import _SIZES, FAMILIES, LEARNED_POSITIONS, VOCABULARY_SIZE, WINDOW, make_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BertLMHeadModel,
    FalconForCausalLM,
    PreTrainedModel,
    T5ForConditionalGeneration,
    XGLMForCausalLM,
)
from transformers.models.llama import modeling_llama

from sparsity_length.cli import InputError
from sparsity_length.models.huggingface import (
    HuggingFaceCausalLM,
    as_causal_lm,
    check_model,
    load_hugging_face,
)
from sparsity_length.models.interface import Prefix, causal_visibility
from sparsity_length.models.load import find_model, load_causal_lm
from sparsity_length.models.settings import Loading

CPU = torch.device("cpu")
NUM_TOKENS = 20
NUM_PAST = 8
ROWS = torch.arange(NUM_TOKENS)[None]
TOKENS = torch.randint(0, VOCABULARY_SIZE, (3, NUM_TOKENS), generator=torch.Generator().manual_seed(1))
TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def lm(family: str, tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceCausalLM:
    folder = tmp_path_factory.mktemp(family)
    make_model(family).save_pretrained(folder)
    return load_hugging_face(folder, device=CPU, num_positions=NUM_TOKENS)


def logits_of(lm: HuggingFaceCausalLM, *arguments: object) -> torch.Tensor:
    return lm.logits(lm.hidden_states(*arguments))


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one - other).abs().max().item()


@torch.inference_mode()
def test_tokens_ids_and_rows_are_those_it_is_given(family: str, lm: HuggingFaceCausalLM) -> None:
    token_ids = TOKENS[:2]
    # The same weights, whose attention the library writes out in plain tensor operations.
    model = make_model(family, attention="eager")
    stock = model(input_ids=token_ids).logits
    everything = lm.hidden_states(token_ids, ROWS, None, None)
    logits = lm.logits(everything)
    visible = causal_visibility(NUM_TOKENS, CPU)
    visible[..., [3, 4, 11]] = False
    kept = visible[0, -1].nonzero()[:, 0]
    gathered = logits_of(lm, token_ids[:, kept], kept[None], None, None)
    # Told which tokens to hide, the library builds the mask itself and cuts its windows into it.
    is_kept = visible[:, -1].expand(2, -1).long()
    masked = model(input_ids=token_ids, position_ids=ROWS.expand(2, -1), attention_mask=is_kept).logits
    for found, expected, why in (
        (logits, stock, "the logits are the model's own"),
        (gathered, logits_of(lm, token_ids, ROWS, visible, None)[:, kept], "left out is hidden"),
        (gathered, masked[:, kept], "the library's own way of hiding is the same"),
    ):
        assert distance(found, expected) < TOLERANCE, why
    assert distance(gathered, logits[:, kept]) > 1e-2, "they were looked at before"
    assert distance(logits_of(lm, token_ids, 2 * ROWS, None, None), logits) > 1e-2, "IDs and not rows count"
    if family not in LEARNED_POSITIONS:
        # Only differences of IDs count, also far beyond max_position_embeddings.
        assert distance(logits_of(lm, token_ids, ROWS + 100, None, None), logits) < 1e-4
    rows = torch.tensor([[1, 5], [0, 19]])
    assert torch.equal(lm.hidden_states(token_ids, ROWS, None, rows), everything[[[0], [1]], rows])


@torch.inference_mode()
def test_in_bfloat16_it_is_the_same_but_for_rounding(family: str, lm: HuggingFaceCausalLM) -> None:
    rounded = as_causal_lm(make_model(family).bfloat16(), family, NUM_TOKENS)
    expected, found = (logits_of(model, TOKENS[:1], ROWS, None, None) for model in (lm, rounded))
    assert (expected.dtype, found.dtype, rounded.dtype) == (torch.float32, torch.bfloat16, torch.bfloat16)
    # The median row: rounding may send a row of Mixtral to another expert.
    assert (found - expected).abs().amax(-1).median() < 0.05 * expected.abs().max()


def test_loading_says_how_many_layers_have_windows(caplog: pytest.LogCaptureFixture) -> None:
    for num_positions in (WINDOW, NUM_TOKENS):  # up to its width a window cuts nothing
        as_causal_lm(make_model("gemma3"), "gemma", num_positions)
    assert [line.partition(":")[0] for line in caplog.messages] == [
        f"1 of the 2 layers of gemma have windows of {WINDOW} positions"
    ]


def test_a_shared_prefix_is_as_good_as_reading_it(lm: HuggingFaceCausalLM) -> None:
    token_ids = torch.cat((TOKENS[:1, :NUM_PAST].expand(3, -1), TOKENS[:, NUM_PAST:]), dim=1)
    visible = causal_visibility(NUM_TOKENS, CPU)
    visible[:, :NUM_PAST, 2:5] = False  # hidden within the prefix
    visible[..., 10:12] = False  # and from all that follow
    beyond = causal_visibility(NUM_TOKENS, CPU)
    beyond[:, NUM_PAST:, 5] = False  # not all of the prefix is seen: copies are needed

    def read(num_rows: int, mask: torch.Tensor | None) -> Prefix:
        return lm.read(token_ids[:1, :num_rows], ROWS[:, :num_rows], mask, torch.tensor([[3, 7]]))[1]

    prefix = read(12, None).first(NUM_PAST)
    for past, mask, of_all in (
        (prefix, None, None),
        (read(NUM_PAST, visible[:, :NUM_PAST, :NUM_PAST]), visible[:, NUM_PAST:, NUM_PAST:], visible),
        (prefix, beyond[:, NUM_PAST:], beyond),
    ):
        found = logits_of(lm, token_ids[:, NUM_PAST:], ROWS[:, NUM_PAST:], mask, None, past)
        assert distance(found, logits_of(lm, token_ids, ROWS, of_all, None)[:, NUM_PAST:]) < TOLERANCE


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
            {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "vision_output_dim": 16,
                "projector_input_dim": 16,
                "projector_output_dim": 16,
            },
        ),
    ],
)
@torch.inference_mode()
def test_a_model_of_pictures_and_text_is_its_text_s(
    kind: str, text: dict[str, Any], pictures: dict[str, Any], tmp_path: Path
) -> None:
    config = AutoConfig.for_model(kind, text_config=FAMILIES["llama"][1] | text, vision_config=pictures)
    torch.manual_seed(0)
    whole = AutoModelForImageTextToText.from_config(config).float().eval()
    whole.save_pretrained(tmp_path)
    # The library's own Llama 4 for pictures fails on text alone.
    stock = whole.language_model if kind == "llama4" else whole
    stock.set_attn_implementation("eager")
    lm = load_hugging_face(tmp_path, device=CPU, num_positions=NUM_TOKENS)
    expected = stock(input_ids=TOKENS, use_cache=False).logits
    assert distance(logits_of(lm, TOKENS, ROWS, None, None), expected) < 1e-5


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}


def _of_kind(kind: type[PreTrainedModel], **fields: Any) -> Callable[[Path], object]:
    config = kind.config_class(vocab_size=VOCABULARY_SIZE, **fields)
    return lambda folder: kind(config).save_pretrained(folder)


def _changed(
    weights: dict[str, torch.Tensor | None] | None = None, **fields: Any
) -> Callable[[Path], object]:
    """Some fields of the configuration, and some weights, of which None are taken out."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | fields))
        tensors = load_file(folder / "model.safetensors") | (weights or {})
        kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        save_file(kept, folder / "model.safetensors", {"format": "pt"})

    return change


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_of_kind(BertLMHeadModel, **SMALL, intermediate_size=48, initializer_range=0.2), "it is not causal"),
        (
            _of_kind(T5ForConditionalGeneration, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4),
            "cannot be loaded as a causal LM",
        ),
        (_of_kind(FalconForCausalLM, **SMALL), "attend in a way of their own, .* what to see$"),
        # Which takes one text at a time alone.
        (
            _of_kind(XGLMForCausalLM, d_model=32, ffn_dim=48, num_layers=1, attention_heads=4),
            "attend in a way of their own, .* what to see",
        ),
        (_changed(num_hidden_layers=1), "no place in it for 9, such as model.layers.1.input_l"),
        (_changed(num_hidden_layers=3), "lacks 9, such as model.layers.2.input_lay"),
        (_changed(vocab_size=50), "lacks 2, such as lm_head.weight"),
        (_changed({"lm_head.weight": None}), "lacks 1, such as lm_head.weight"),
        (_changed({"lm_head.weight": torch.full((48, 32), torch.nan)}), "are not finite numbers"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "holds an adapter .* merge it"),
        (lambda folder: os.truncate(folder / "model.safetensors", 4000), "cannot be .*not fully covered"),
    ],
)
def test_other_models_and_weights_of_others_are_refused(
    spoil: Callable[[Path], object], sentence: str, tmp_path: Path
) -> None:
    make_model("llama").save_pretrained(tmp_path)
    spoil(tmp_path)
    with pytest.raises(InputError, match=sentence):
        load_causal_lm(find_model(str(tmp_path)), Loading(device="cpu"), 16)


@pytest.mark.parametrize(
    "change",
    [
        # What older versions of the library saved with the weights, and computes anew.
        _changed(
            {
                "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
                "model.embeddings.position_ids": torch.arange(64)[None],
                "model.layers.0.self_attn.masked_bias": torch.tensor(-1e4),
            }
        ),
        # Not tied, as the weights show: the library goes by these.
        _changed(tie_word_embeddings=True),
        lambda folder: (folder / "model.pt").touch(),
    ],
)
@torch.inference_mode()
def test_the_model_measured_is_the_folder_s(change: Callable[[Path], object], tmp_path: Path) -> None:
    model = make_model("llama")
    model.save_pretrained(tmp_path)
    change(tmp_path)
    lm = load_causal_lm(find_model(str(tmp_path)), Loading(device="cpu"), NUM_TOKENS)
    assert distance(logits_of(lm, ROWS, ROWS, None, None), model(input_ids=ROWS).logits) < TOLERANCE


def _choosing(kind: str, index_topk: int) -> PreTrainedModel:
    """A model whose rows attend to their best so many tokens."""
    config = AutoConfig.for_model(
        kind,
        **_SIZES,
        index_topk=index_topk,
        moe_intermediate_size=16,
        num_experts_per_tok=2,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        index_head_dim=16,
        index_n_heads=2,
        head_dim=8,
        num_key_value_heads=4,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()


@pytest.mark.parametrize(
    ("make", "longest", "sentence"),
    [
        # Its code has no windows, whatever its configuration says: like a family that cuts them elsewhere.
        (
            partial(make_model, "llama", attention="eager", sliding_window=9),
            9,
            "its logits are not its output embedding",
        ),
        (partial(make_model, "gpt2", attention="eager"), 64, "at 64 positions at most"),
        (
            partial(
                make_model,
                "llama",
                attention="eager",
                rope_parameters={
                    "rope_type": "dynamic",
                    "rope_theta": 1e4,
                    "factor": 2.0,
                    "original_max_position_embeddings": 999,
                },
            ),
            64,
            "at 64 positions at most",
        ),
        (
            partial(make_model, "phi3_longrope", attention="eager", original_max_position_embeddings=48),
            48,
            "at 48 positions at most",
        ),
        (partial(_choosing, "deepseek_v32", 40), 40, "at 40 positions at most"),
        (partial(_choosing, "glm_moe_dsa", 40), 40, "at 40 positions at most"),
    ],
)
@torch.inference_mode()
def test_positions_that_a_model_has_no_place_for(
    make: Callable[[], PreTrainedModel], longest: int, sentence: str
) -> None:
    """Nor windows, nor tokens that its attention would not choose: up to the limit all are seen."""
    with pytest.raises(InputError, match=sentence):
        as_causal_lm(make(), "m", longest + 1)
    lm = as_causal_lm(make(), "m", longest)
    ids = torch.arange(longest)[None]
    token_ids = ids * 7 % VOCABULARY_SIZE
    # Up to the limit nothing is lost: the model left alone says the same.
    stock = make()(input_ids=token_ids, use_cache=False).logits
    assert distance(logits_of(lm, token_ids, ids, None, None), stock) < TOLERANCE


def test_a_mask_that_leaves_tokens_out_beyond_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a way that is not known, of which the configuration has a field."""
    library = modeling_llama.create_causal_mask

    def with_blocks(*of: Any, **named: Any) -> torch.Tensor:
        mask_B1SS = library(*of, **named)
        is_other_SS = torch.ones(mask_B1SS.shape[-2:], dtype=torch.bool).tril(-40)
        return mask_B1SS.masked_fill(is_other_SS, torch.finfo(torch.float32).min)

    monkeypatch.setattr(modeling_llama, "create_causal_mask", with_blocks)
    model = make_model("llama", attention="eager", block_sparse_size=40)
    as_causal_lm(model, "m", 40)
    with pytest.raises(InputError, match=r"on 64 tokens: .* leaves some of them out \(block_sparse_size in"):
        as_causal_lm(model, "m", 64)


@pytest.mark.parametrize(
    ("family", "field"),
    [
        ("llama_dynamic_rope", "max_position_embeddings"),
        ("phi3_longrope", "original_max_position_embeddings"),
    ],
)
@torch.inference_mode()
def test_frequencies_are_those_of_the_text_also_after_a_longer_one(family: str, field: str) -> None:
    model = make_model(family, **{field: 64})
    text = torch.arange(80)[None] * 7 % VOCABULARY_SIZE
    plain = model(input_ids=text[:, :64]).logits
    assert distance(model(input_ids=text).logits[:, :64], plain) > 1e-2, "they change beyond"
    lm = as_causal_lm(model, "m", 64)  # whose frequencies are those of 80 tokens by now
    assert distance(logits_of(lm, text[:, :64], torch.arange(64)[None], None, None), plain) < 2e-5


STATES = HuggingFaceCausalLM.hidden_states


@pytest.mark.parametrize(
    ("method", "disobeying", "sentence"),
    [
        (
            "hidden_states",
            lambda lm, tokens, ids, visible, *rest: STATES(lm, tokens, ids, None, *rest),
            "tokens left out at kept position IDs are not the same",
        ),
        (
            "hidden_states",
            lambda lm, tokens, ids, visible, queries, *prefix: STATES(lm, tokens, ids, visible, queries),
            "it does not read on from a shared prefix",
        ),
        (
            "read",
            Mock(side_effect=KeyError("layer 3")),
            r"it fails when .* visibility and a prefix \(KeyError: 'layer 3'\)",
        ),
    ],
    ids=["mask", "prefix", "fails"],
)
def test_a_model_that_disobeys_is_refused(
    method: str, disobeying: Callable[..., object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HuggingFaceCausalLM, method, disobeying)
    with pytest.raises(InputError, match=f"m cannot be measured: {sentence}"):
        check_model(HuggingFaceCausalLM(make_model("llama")), "m", 64)
