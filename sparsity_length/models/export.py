"""OLMo weights as Hugging Face's `OlmoForCausalLM`: the same losses, in the format that other tools read.

The class has one norm (without weights), one activation and no biases. What is written is read back, and
refused if its losses are not the model's.
"""

import argparse
import shutil
from pathlib import Path

import torch
import transformers
from olmo.model import OLMo
from torch.nn.functional import cross_entropy

from sparsity_length.cli import InputError, logger
from sparsity_length.models.checkpoints import errors_in_words, find_checkpoint, whole_model
from sparsity_length.models.olmo import blocks_of, load_stock_olmo
from sparsity_length.text.folder import TOKENIZER_FILE, TokenizedData

_NUM_CHECKED_TOKENS = 32
_MAX_DIFFERENCE_NATS = 1e-4


def as_hugging_face(model: OLMo) -> transformers.OlmoForCausalLM:
    """The same model in Hugging Face's class, in evaluation mode; its weights are copies."""
    config = model.config
    twin_config = transformers.OlmoConfig(
        # All rows of the embedding, those that only pad it too: OLMo's softmax is over all of them.
        vocab_size=config.embedding_size or config.vocab_size,
        hidden_size=config.d_model,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.effective_n_kv_heads,
        # OLMo counts SwiGLU's gate and its input together, Hugging Face one of the two.
        intermediate_size=(config.mlp_hidden_size or config.mlp_ratio * config.d_model) // 2,
        max_position_embeddings=config.max_sequence_length,
        rope_parameters={"rope_type": "default", "rope_theta": float(config.rope_theta)},
        clip_qkv=config.clip_qkv,
        tie_word_embeddings=config.weight_tying,
        pad_token_id=config.pad_token_id,
        bos_token_id=None,
        eos_token_id=config.eos_token_id,
    )
    twin = transformers.OlmoForCausalLM(twin_config)
    # With tied weights there is no lm_head to load; `tie_weights` makes it the embedding.
    twin.load_state_dict(_renamed_weights(model), strict=not config.weight_tying)
    twin.tie_weights()
    return twin.eval()


def _renamed_weights(model: OLMo) -> dict[str, torch.Tensor]:
    """OLMo's fused projections split into Hugging Face's; the second half of SwiGLU's input is its gate."""
    weights = {"model.embed_tokens.weight": model.transformer.wte.weight}
    if not model.config.weight_tying:
        weights["lm_head.weight"] = model.transformer.ff_out.weight
    for index, block in enumerate(blocks_of(model)):
        prefix = f"model.layers.{index}."
        # `fused_dims` differ with grouped keys: as many rows as heads of each kind have numbers.
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
    return weights


def write_hugging_face_folder(model: OLMo, tokenizer_file: Path, eos_token_id: int, folder: Path) -> float:
    """Write the configurations, model.safetensors, the tokenizer's files and checksums; whole or absent.

    Returns the largest difference, in nats, of the losses of a few tokens under what was written and `model`,
    which is on the CPU. InputError if `folder` exists, Hugging Face's class cannot express the model, or
    the losses differ or are no numbers.
    """
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{folder} is there already; choose another --out, or remove it")
    with errors_in_words("Hugging Face's OlmoForCausalLM cannot hold the weights of this model"):
        twin = as_hugging_face(model)
    with whole_model(folder) as draft:
        twin.save_pretrained(draft)
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(tokenizer_file), model_max_length=model.config.max_sequence_length
        )
        tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(eos_token_id)
        tokenizer.save_pretrained(draft)
        shutil.copyfile(tokenizer_file, draft / "tokenizer.json")  # of the same bytes as the data's
        difference = _largest_difference(model, draft)
        if not difference <= _MAX_DIFFERENCE_NATS:  # which nan is not either
            raise InputError(
                f"the exported losses differ by {difference:.2g} nats from the model's own: Hugging Face's"
                " OlmoForCausalLM lacks something that this model has, such as biases or weights of its"
                " norms, or its losses are no numbers"
            )
    return difference


@torch.inference_mode()
def _largest_difference(model: OLMo, folder: Path) -> float:
    """Between the losses of random tokens under the folder's model and under `model`, in nats."""
    # As another program would load it: the files are checked, not the object that wrote them.
    twin = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    size = 1, min(_NUM_CHECKED_TOKENS, model.config.max_sequence_length)
    token_ids_1S = torch.randint(model.config.vocab_size, size, generator=torch.Generator().manual_seed(0))
    losses = [
        cross_entropy(module(token_ids_1S).logits[0, :-1], token_ids_1S[0, 1:], reduction="none")
        for module in (model.eval(), twin)
    ]
    return float((losses[0] - losses[1]).abs().max())


def export(arguments: argparse.Namespace) -> None:
    """What export_huggingface.py does: load, refuse or write, and compare what was written with the model."""
    checkpoint = find_checkpoint(arguments.checkpoint)
    data = TokenizedData.open(arguments.data)
    model = load_stock_olmo(checkpoint)
    # Nothing in a checkpoint names its tokenizer; a wrong one has as a rule another size or EOS.
    if (model.config.vocab_size, model.config.eos_token_id) != (data.vocabulary_size, data.eos_token_id):
        raise InputError(
            f"{checkpoint} was trained with another tokenizer than {arguments.data}: it has"
            f" {model.config.vocab_size} tokens and EOS {model.config.eos_token_id}, and not"
            f" {data.vocabulary_size} and {data.eos_token_id}"
        )
    difference = write_hugging_face_folder(
        model, data.whole(TOKENIZER_FILE), data.eos_token_id, arguments.out
    )
    logger.info("wrote %s; its losses are the checkpoint's to %.1e nats", arguments.out, difference)
