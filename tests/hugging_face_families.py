"""Tiny random Hugging Face models, one of each kind that models/huggingface.py must get right."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from sparsity_length.text.tokenizer import train_bpe

VOCABULARY_SIZE = 48
_SIZES = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
_ALIBI = {"vocab_size": VOCABULARY_SIZE, "initializer_range": 0.2}

WINDOW = 7
"""How many tokens a token sees, itself included, in layers that slide."""
_SLIDES = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}


def _rope(rope_type: str, **fields: Any) -> dict[str, Any]:
    return {"rope_type": rope_type, "rope_theta": 1e4, **fields}


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _SIZES | _GROUPED | {"tie_word_embeddings": False}),
    "llama3_rope_tied": (
        "llama",
        _SIZES
        | _GROUPED
        | {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "llama_linear_rope": ("llama", _SIZES | _GROUPED | {"rope_parameters": _rope("linear", factor=4.0)}),
    "llama_dynamic_rope": (
        "llama",
        _SIZES | _GROUPED | {"rope_parameters": _rope("dynamic", factor=4.0), "max_position_embeddings": 256},
    ),
    "phi3_longrope": (
        "phi3",
        _SIZES
        | {
            "max_position_embeddings": 1024,
            "original_max_position_embeddings": 256,
            "rope_parameters": _rope("longrope", short_factor=[1, 1.1, 1.2, 1.3], long_factor=[1.0, 3, 5, 8]),
        },
    ),
    "mistral": ("mistral", _SIZES | _GROUPED | {"sliding_window": None}),
    "mistral_window": ("mistral", _SIZES | _GROUPED | {"sliding_window": WINDOW}),
    "qwen2": ("qwen2", _SIZES | _GROUPED | {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", _SIZES | _GROUPED),
    "gemma": ("gemma", _SIZES | _GROUPED),
    "gemma2": (
        "gemma2",
        _SIZES
        | _GROUPED
        | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}
        | _SLIDES,
    ),
    "gemma3": ("gemma3_text", _SIZES | _GROUPED | _SLIDES | {"query_pre_attn_scalar": 8}),
    "olmo2": ("olmo2", _SIZES | _GROUPED),
    "olmo3": (
        "olmo3",
        _SIZES
        | _GROUPED
        | _SLIDES
        | {
            "rope_parameters": {
                "sliding_attention": _rope("default"),
                "full_attention": _rope("yarn", factor=1.25, original_max_position_embeddings=16),
            },
        },
    ),
    "smollm3": ("smollm3", _SIZES | _GROUPED | {"no_rope_layers": [1, 0]}),
    "gpt_neox": ("gpt_neox", _SIZES | {"rotary_pct": 0.25}),
    "cohere": ("cohere", _SIZES | _GROUPED | {"logit_scale": 0.25}),
    "cohere2": ("cohere2", _SIZES | _GROUPED | _SLIDES | {"logit_scale": 0.25}),  # full layers without RoPE
    "granite": ("granite", _SIZES | _GROUPED | {"logits_scaling": 4.0, "embedding_multiplier": 2.0}),
    "phi": ("phi", _SIZES),
    "mixtral": ("mixtral", _SIZES | _GROUPED | {"num_local_experts": 4}),
    "stablelm": ("stablelm", _SIZES | {"num_key_value_heads": 2}),
    "nemotron": ("nemotron", _SIZES | _GROUPED),
    "llama4": (
        "llama4_text",
        _SIZES
        | _GROUPED
        # In bfloat16 rounding would choose another of two experts.
        | {"intermediate_size_mlp": 48, "num_local_experts": 1, "attention_chunk_size": 64},
    ),
    "gpt2": (
        "gpt2",
        {
            "vocab_size": VOCABULARY_SIZE,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "initializer_range": 0.2,
            "bos_token_id": None,
            "eos_token_id": None,
        },
    ),
    # Six heads: slopes of no power of two, which the two families choose in two ways.
    # -1 in a configuration says that there is no limit.
    "bloom": (
        "bloom",
        _ALIBI | {"hidden_size": 48, "n_layer": 2, "n_head": 6, "max_position_embeddings": -1},
    ),
    "mpt": ("mpt", _ALIBI | {"d_model": 48, "n_layers": 2, "n_heads": 6}),
    "opt": ("opt", _SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
}
"""name -> model type and configuration."""

LEARNED_POSITIONS = {"gpt2", "opt"}


def windowed(model: PreTrainedModel, mask_B1SS: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
    """A mask as a stock model must be given it, of numbers to be added: it cuts no window into one itself."""
    width = getattr(model.config, "sliding_window", None)
    if width is None:
        return mask_B1SS
    is_beyond_SS = torch.ones(mask_B1SS.shape[-2:], dtype=torch.bool).tril(-width)
    near_B1SS = mask_B1SS.masked_fill(is_beyond_SS, mask_B1SS.min())
    by_layer = {"full_attention": mask_B1SS, "sliding_attention": near_B1SS}
    return by_layer if getattr(model.config, "layer_types", None) else near_B1SS


def make_model(family: str, seed: int = 0, attention: str | None = None, **fields: Any) -> PreTrainedModel:
    """A random model in float32; norms' weights are random too, so that a forgotten one would show."""
    model_type, own_fields = FAMILIES[family]
    config = AutoConfig.for_model(model_type, **own_fields | fields)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    if family == "bloom":
        # The stock model closes hidden tokens up; with all of them counted they keep their places.
        biased = model.transformer.build_alibi_tensor
        model.transformer.build_alibi_tensor = lambda mask, *rest, **named: biased(
            torch.ones_like(mask), *rest, **named
        )
    return model


def save_model(folder: Path, tokenizer: str, family: str = "llama", seed: int = 0, **fields: Any) -> str:
    """Write a random model and its tokenizer.json as the hub has them; the folder."""
    fields = {"vocab_size": Tokenizer.from_str(tokenizer).get_vocab_size()} | fields
    make_model(family, seed, **fields).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer)
    return str(folder)


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}: {{ message['content'] }}<|im_end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
)
CHAT = [
    {"role": "user", "content": "where sat the cat, and what saw the cat there?"},
    {"role": "assistant", "content": "the cat sat on a mat"},
]


def save_chat_model(folder: Path, texts: Sequence[str], vocabulary_size: int) -> Path:
    """A random GPT-NeoX of 64 positions, a tokenizer trained on the texts, and a chat template."""
    inner = Tokenizer.from_str(train_bpe(texts, vocabulary_size).to_json())
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", chat_template=CHAT_TEMPLATE
    )
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    make_model("gpt_neox", vocab_size=len(fast)).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder
