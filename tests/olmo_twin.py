"""The same weights in two libraries: an ai2-olmo model as Hugging Face's OLMo."""

from olmo.model import OLMo
from transformers import OlmoConfig, OlmoForCausalLM


def hugging_face_twin(model: OLMo) -> OlmoForCausalLM:
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
