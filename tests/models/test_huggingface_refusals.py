"""Models that cannot be measured are refused when they are loaded, in a sentence that says why."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hugging_face_families
import pytest
import torch
from hugging_face_families import VOCABULARY_SIZE, make_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    FalconConfig,
    FalconForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    XGLMConfig,
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
from sparsity_length.models.load import Loading, find_model, load_causal_lm

CPU = torch.device("cpu")
SMALL = {"vocab_size": VOCABULARY_SIZE, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}


def load(folder: Path, num_positions: int = 16) -> HuggingFaceCausalLM:
    return load_hugging_face(folder, device=CPU, num_positions=num_positions)


def _t5() -> PreTrainedModel:
    config = T5Config(vocab_size=VOCABULARY_SIZE, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    return T5ForConditionalGeneration(config)


def _no_numbers() -> PreTrainedModel:
    model = make_model("llama")
    model.lm_head.weight.data[3] = float("nan")
    return model


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: BertLMHeadModel(BertConfig(**SMALL, intermediate_size=48, initializer_range=0.2)),
            "it is not causal",
        ),
        (_t5, "cannot be loaded as a causal LM"),
        (
            lambda: FalconForCausalLM(
                FalconConfig(vocab_size=48, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
            ),
            "attend in a way of their own, .* what to see$",
        ),
        (lambda: AutoModel.from_config(make_model("llama").config), "lacks 1, such as lm_head.weight"),
        (_no_numbers, "its logits are not finite numbers"),
        # Which takes one text at a time alone.
        (
            lambda: XGLMForCausalLM(
                XGLMConfig(
                    vocab_size=VOCABULARY_SIZE, d_model=32, ffn_dim=48, num_layers=1, attention_heads=4
                )
            ),
            "attend in a way of their own, .* what to see",
        ),
    ],
)
def test_other_kinds_of_model(make: Callable[[], PreTrainedModel], sentence: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=sentence):
        load(tmp_path)


def _changed_config(**fields: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | fields))

    return change


def _changed_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def rewrite(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return rewrite


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_changed_config(num_hidden_layers=1), "no place in it for 9, such as model.layers.1.input_l"),
        (_changed_config(num_hidden_layers=3), "lacks 9, such as model.layers.2.input_lay"),
        (_changed_config(vocab_size=50), "lacks 2, such as lm_head.weight"),
        (_changed_weights(lambda of: of.update({"score.weight": torch.ones(2, 32)})), "such as score.weight"),
        (_changed_weights(lambda of: of.pop("lm_head.weight")), "lacks 1, such as lm_head.weight"),
        # What older versions of the library saved with the weights, and computes anew.
        (
            _changed_weights(
                lambda of: of.update(
                    {
                        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
                        "model.embeddings.position_ids": torch.arange(64)[None],
                        "model.layers.0.self_attn.masked_bias": torch.tensor(-1e4),
                    }
                )
            ),
            None,
        ),
        # Not tied, as the weights show: the library goes by these.
        (_changed_config(tie_word_embeddings=True), None),
        (lambda folder: (folder / "model.pt").touch(), None),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "holds an adapter .* merge it"),
        (lambda folder: os.truncate(folder / "model.safetensors", 4000), "cannot be .*not fully covered"),
    ],
)
@torch.inference_mode()
def test_the_model_measured_is_the_folder_s(
    spoil: Callable[[Path], object], sentence: str | None, tmp_path: Path
) -> None:
    model = make_model("llama")
    ids = torch.arange(16)[None]
    model.save_pretrained(tmp_path)
    spoil(tmp_path)
    if sentence is not None:
        with pytest.raises(InputError, match=sentence):
            load_causal_lm(find_model(str(tmp_path)), Loading("cpu"), 16)
        return
    lm = load_causal_lm(find_model(str(tmp_path)), Loading("cpu"), 16)
    found = lm.logits(lm.hidden_states(ids, ids, None, None)[0])
    assert (found - model(input_ids=ids).logits[0]).abs().max() < 2e-5


@pytest.mark.parametrize(
    ("family", "fields", "longest"),
    [
        # Its code has no windows, whatever its configuration says: like a family that cuts them elsewhere.
        ("llama", {"sliding_window": 9}, 9),
        ("gpt2", {}, 64),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "dynamic",
                    "rope_theta": 1e4,
                    "factor": 2.0,
                    "original_max_position_embeddings": 999,
                }
            },
            64,
        ),
        ("phi3_longrope", {"original_max_position_embeddings": 48}, 48),
    ],
)
def test_positions_that_a_model_has_no_place_for(
    family: str, fields: dict[str, Any], longest: int, tmp_path: Path
) -> None:
    model = make_model(family, attention="eager", **fields)
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"measured at {longest} positions at most|cannot be measured"):
        load(tmp_path, longest + 1)
    lm = load(tmp_path, longest)
    ids = torch.arange(longest)[None]
    token_ids = ids % VOCABULARY_SIZE
    with torch.inference_mode():
        stock = model(input_ids=token_ids).logits
    # Up to the limit nothing is lost: the model left alone says the same.
    assert (lm.logits(lm.hidden_states(token_ids, ids, None, None)) - stock).abs().max() < 2e-5


_SPARSE = {
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "head_dim": 8,
    "num_key_value_heads": 4,
}


@pytest.mark.parametrize(
    ("kind", "longest"), [("deepseek_v32", 40), ("glm_moe_dsa", 40), ("deepseek_v32", 8)]
)
@torch.inference_mode()
def test_attention_that_chooses_tokens(kind: str, longest: int) -> None:
    """Measured where all tokens are chosen; else refused, as the numbers would be wrong."""
    config = AutoConfig.for_model(kind, **hugging_face_families._SIZES, **_SPARSE, index_topk=longest)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    ids = torch.arange(64)[None]
    token_ids = ids * 7 % VOCABULARY_SIZE
    stock = model(input_ids=token_ids, use_cache=False).logits
    lm = as_causal_lm(copy.deepcopy(model), "m", longest)
    found = lm.logits(lm.hidden_states(token_ids, ids, None, None)[0])
    assert (found - stock[0])[:longest].abs().max() < 2e-5
    assert (found - stock[0])[longest:].abs().max() > 1e-2
    with pytest.raises(InputError, match=f"at {longest} positions at most"):
        as_causal_lm(model, "m", 64)


def test_a_mask_that_leaves_tokens_out_beyond_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a way that is not known, of which the configuration has a field."""
    library = modeling_llama.create_causal_mask

    def with_blocks(*of: Any, **named: Any) -> torch.Tensor:
        mask_B1SS = library(*of, **named)
        num_rows = mask_B1SS.shape[-1]
        is_other_SS = torch.ones(num_rows, num_rows, dtype=torch.bool).tril(-40)
        return mask_B1SS.masked_fill(is_other_SS, torch.finfo(torch.float32).min)

    monkeypatch.setattr(modeling_llama, "create_causal_mask", with_blocks)
    fields = {"attention": "eager", "block_sparse_size": 40}
    as_causal_lm(make_model("llama", **fields), "m", 40)
    with pytest.raises(InputError, match=r"on 64 tokens: .* leaves some of them out \(block_sparse_size in"):
        as_causal_lm(make_model("llama", **fields), "m", 64)


@pytest.mark.parametrize(
    ("family", "field"),
    [
        ("llama_dynamic_rope", "max_position_embeddings"),
        ("phi3_longrope", "original_max_position_embeddings"),
    ],
)
@torch.inference_mode()
def test_frequencies_are_those_of_the_text_also_after_a_longer_one(family: str, field: str) -> None:
    longest = 64
    short = slice(48, longest)
    model = make_model(family, **{field: longest})
    text = torch.arange(80)[None] * 7 % VOCABULARY_SIZE
    ids = torch.arange(longest)[None]
    plain = model(input_ids=text[:, :longest]).logits
    is_short = (ids >= short.start).long()
    masked = model(input_ids=text[:, :longest], position_ids=ids, attention_mask=is_short).logits[:, short]
    assert (model(input_ids=text).logits[:, :longest] - plain).abs().max() > 1e-2, "they change beyond"
    lm = as_causal_lm(model, "m", longest)  # whose frequencies are those of 80 tokens by now
    hidden = lm.hidden_states(text[:, short], ids[:, short], None, None)
    assert (lm.logits(hidden) - masked).abs().max() < 2e-5
    assert (lm.logits(lm.hidden_states(text[:, :longest], ids, None, None)) - plain).abs().max() < 2e-5


class _BlindToTheMask(HuggingFaceCausalLM):
    def hidden_states(self, tokens: Any, ids: Any, visible: Any, *rest: Any) -> torch.Tensor:
        return super().hidden_states(tokens, ids, None, *rest)


class _ForgetsThePrefix(HuggingFaceCausalLM):
    def hidden_states(self, tokens: Any, ids: Any, visible: Any, queries: Any, *_: Any) -> torch.Tensor:
        return super().hidden_states(tokens, ids, visible, queries)


class _Fails(HuggingFaceCausalLM):
    def read(self, *arguments: object) -> None:
        raise KeyError("layer 3")


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (_BlindToTheMask, "m cannot be measured: tokens left out at kept position IDs are not the same"),
        (_ForgetsThePrefix, "m cannot be measured: it does not read on from a shared prefix"),
        (_Fails, r"m cannot be measured: it fails when .* visibility and a prefix \(KeyError: 'layer 3'\)"),
    ],
)
def test_a_model_that_disobeys_is_refused(kind: type[HuggingFaceCausalLM], sentence: str) -> None:
    lm = kind(make_model("llama"))
    with pytest.raises(InputError, match=sentence):
        check_model(lm, "m", 64)
