"""A second implementation must agree: the same weights in Hugging Face's OLMo give the same token losses."""

from collections.abc import Callable

import numpy as np
import torch
from olmo.model import OLMo
from transformers import OlmoConfig, OlmoForCausalLM

from pipeline.influence.context_loss import long_context_losses
from pipeline.models.olmo import OLMoCausalLM


def _as_hugging_face(model: OLMo) -> OlmoForCausalLM:
    """OLMo's fused projections split into Hugging Face's; SwiGLU's second half is the gate."""
    config = model.config
    twin = OlmoForCausalLM(
        OlmoConfig(
            vocab_size=config.vocab_size, hidden_size=config.d_model, num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads, intermediate_size=config.mlp_ratio * config.d_model // 2,
            max_position_embeddings=config.max_sequence_length, tie_word_embeddings=True,
            pad_token_id=0, bos_token_id=None, eos_token_id=0,
        )
    )  # fmt: skip
    weights = {"model.embed_tokens.weight": model.transformer.wte.weight}
    for index, block in enumerate(model.transformer.blocks):
        prefix = f"model.layers.{index}."
        query, key, value = block.att_proj.weight.split(block.fused_dims, dim=0)
        up, gate = block.ff_proj.weight.chunk(2, dim=0)
        weights |= {
            f"{prefix}self_attn.q_proj.weight": query,
            f"{prefix}self_attn.k_proj.weight": key,
            f"{prefix}self_attn.v_proj.weight": value,
            f"{prefix}self_attn.o_proj.weight": block.attn_out.weight,
            f"{prefix}mlp.up_proj.weight": up,
            f"{prefix}mlp.gate_proj.weight": gate,
            f"{prefix}mlp.down_proj.weight": block.ff_out.weight,
        }
    missing, unexpected = twin.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    twin.tie_weights()
    return twin.eval()


def test_hugging_face_agrees_on_every_token_loss(make_olmo: Callable[..., OLMo]) -> None:
    model = make_olmo(max_sequence_length=64)
    twin = _as_hugging_face(model)
    tokens = np.random.default_rng(3).integers(0, 48, 64)
    ours = long_context_losses(OLMoCausalLM(model), tokens, np.arange(1, 64))
    with torch.inference_mode():
        logits = twin(torch.tensor(tokens)[None]).logits[0, :-1]
    theirs = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]), reduction="none")
    assert np.abs(ours - theirs.numpy()).max() < 1e-4
    assert ours.std() > 0.1  # the agreement is about losses that differ from token to token
