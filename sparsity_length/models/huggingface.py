"""Hugging Face causal LMs behind the `CausalLM` interface.

The model's own code runs; its attention is replaced by ours (`attention.py`), to which each pass gives what
its rows see and the keys and values of a prefix, instead of the library's masks and caches. A model must show
on a few tokens, when it is loaded, that it obeys (`check_model`), or it is refused.

A sliding window counts position IDs. So a token left out keeps its place in the windows of others, as if a
stock model were given a mask that hides it.

Shapes: B batch, S rows, P rows of a prefix, K = S or P + S, T query rows, D width, H heads, G key-value
heads, E head width, V vocabulary, N any number of rows.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import nn

from sparsity_length.cli import InputError, logger
from sparsity_length.models.attention import attend
from sparsity_length.models.checkpoints import errors_in_words
from sparsity_length.models.interface import (
    CausalLM,
    Running,
    causal_visibility,
    rows_of,
    visibility_with_prefix,
)
from sparsity_length.models.rope import RopeScaling, Stair

OURS = "attention_with_shared_prefix"
"""Name of our attention among the library's."""


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in one layer, [B, S, H, E], in place of the library's; the mask that it made is left out."""
    layer: Any = module.layer_idx
    running, visible_of_layers = cast(tuple[Any, Any], _PASS.get())
    visible = visible_of_layers[layer]
    if visible is not None:
        visible = visible.to(query.device)  # layers may be spread over devices
    attended = attend(running, layer, query, key, value, visible, scaling, softcap=softcap, sink_H=s_aux)
    return attended.transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register(OURS, _attend)
_PASS: ContextVar[tuple[Running, Sequence[torch.Tensor | None]] | None] = ContextVar("pass", default=None)
"""The pass that runs, and what its rows see in each layer: not every family hands arguments on to layers."""
_WITH_ALIBI = ("BloomAttention", "MptAttention")
"""Layers with ALiBi, which know nothing of `transformers.AttentionInterface`."""


def _attend_with_alibi(
    layer: Any, hidden_BSD: torch.Tensor, residual_BSD: torch.Tensor | None = None, *others: Any, **named: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A layer of `_WITH_ALIBI`, by our attention in a pass of ours; the bias that it is given is left out."""
    if _PASS.get() is None:
        given = hidden_BSD, *(() if residual_BSD is None else (residual_BSD,))
        return type(layer).forward(layer, *given, *others, **named)
    if residual_BSD is not None:  # BLOOM's
        query, key, value = layer._reshape(layer.query_key_value(hidden_BSD))
        attended_BSHE, _ = _attend(layer, query, key, value, None)
        return residual_BSD + layer.dense(attended_BSHE.flatten(2)), None
    qkv = layer.Wqkv(hidden_BSD)
    if layer.clip_qkv:
        qkv = qkv.clamp(min=-layer.clip_qkv, max=layer.clip_qkv)
    heads_BSNE = qkv.unflatten(-1, (3 * layer.n_heads, -1))
    query, key, value = heads_BSNE.transpose(1, 2).chunk(3, dim=1)
    attended_BSHE, _ = _attend(layer, query, key, value, None, layer.softmax_scale)
    return layer.out_proj(attended_BSHE.flatten(2)), None


class HuggingFaceCausalLM(CausalLM):
    """A Hugging Face causal LM; `load_hugging_face` makes sure that it is of a kind that can be measured.

    Position IDs will be below `num_positions`, if that is given: a window as wide cuts nothing.
    """

    _model: transformers.PreTrainedModel

    def __init__(self, model: transformers.PreTrainedModel, num_positions: int | None = None) -> None:
        super().__init__(model)
        self._config = model.config.get_text_config()
        all_slide = ["sliding_attention"] * self._config.num_hidden_layers
        # A width without kinds of layers, as Mistral has it, is that of all.
        kinds = getattr(self._config, "layer_types", None) or all_slide
        self._slides = [kind == "sliding_attention" for kind in kinds]
        width = getattr(self._config, "sliding_window", None) if any(self._slides) else None
        self.window = width if width and (num_positions is None or num_positions > width) else None
        """How many position IDs a row sees in layers that slide, its own included; None: nothing is cut."""
        # Llama 4 names its base model by what only pictures have.
        self._base: Any = model.model if model.base_model is model else model.base_model
        model.set_attn_implementation(OURS)
        self._slopes_H: torch.Tensor | None = None
        """ALiBi's of each head, in families that have it."""
        for module in model.modules():
            if type(module).__name__ in _WITH_ALIBI:
                module.forward = partial(_attend_with_alibi, module)
                self._slopes_H = _slopes_of(self._base)

    @property
    def sees_all(self) -> bool:
        """Not if all layers slide."""
        return self.window is None or not all(self._slides)

    @property
    def vocabulary_size(self) -> int:
        """Many families pad it beyond their tokenizer's."""
        return self._model.get_output_embeddings().weight.shape[0]

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """Scaled if the family's embedding does that."""
        return self._model.get_input_embeddings()(token_ids_1S)

    def _states(
        self,
        tokens: torch.Tensor,
        position_ids_BS: torch.Tensor,
        query_rows_BT: torch.Tensor | None,
        running: Running,
    ) -> torch.Tensor:
        """Compute all rows, in every layer."""
        # Two visibilities for all layers, made once: with the window, and without.
        near_B1SK = running.visible_B1SK
        if self.window is not None:
            ids_BK = running.position_ids_BK
            near_B1SK = visibility_with_prefix(near_B1SK, tokens.shape[1], ids_BK.shape[1], self.device)
            # With a window of 2, the row at ID 5 sees IDs 4 and 5: 3 + 2 <= 5 is beyond.
            is_beyond_BSK = ids_BK[:, None] + self.window <= position_ids_BS[..., None]
            hidden = torch.finfo(self.dtype).min if near_B1SK.is_floating_point() else False
            near_B1SK = torch.where(is_beyond_BSK[:, None], hidden, near_B1SK)
        visible_of_layers = [near_B1SK if slides else running.visible_B1SK for slides in self._slides]
        # Without a mask the library takes a gap in the position IDs for the border of two packed sequences;
        # one with four dimensions it leaves as it is.
        mask = torch.zeros(1, 1, 1, 1, dtype=self.dtype, device=self.device)
        if self._stair is not None:
            far_scores = partial(self._far_scores, position_ids_BS, running.position_ids_BK)
            running = replace(running, change=far_scores)
        if self._slopes_H is not None:
            running = replace(running, slopes_H=self._slopes_H)
            mask = torch.ones(tokens.shape[:2], dtype=torch.int64, device=self.device)  # BLOOM counts in it
        token = _PASS.set((running, visible_of_layers))
        try:
            # The base model stops before the vocabulary projection, which runs later at query rows only.
            output = self._base(
                **{"inputs_embeds" if tokens.is_floating_point() else "input_ids": tokens},
                position_ids=position_ids_BS.expand(tokens.shape[:2]),
                attention_mask=mask,
                use_cache=False,
                return_dict=True,
            )
        finally:  # or a stock pass after an error would not be one
            _PASS.reset(token)
        return rows_of(output.last_hidden_state.to(self.device), query_rows_BT)

    _stair: Stair | None = None

    @torch.inference_mode()
    def climb(self, stair: Stair, name: str) -> None:
        """Give distant pairs of tokens the distances of `stair`, in layers with RoPE.

        Rotations add up, so what the family's code has rotated is rotated on, by that code. InputError if the
        model has no RoPE of which this is true.
        """
        rows_1S = torch.arange(_NUM_TOKENS, device=self.device)[None]
        moved_1S = rows_1S + 5
        # A relative model, moved as a whole, has the same keys, rotated on.
        layers, moved = (self.read(rows_1S % 7, ids, None, None)[1] for ids in (rows_1S, moved_1S))
        self._rotates = []
        for layer, (key, _) in enumerate(layers.keys_and_values):
            moved_key, _ = moved.keys_and_values[layer]
            # Biases of keys may be large, and would hide what turns.
            middle = key.mean(-2, keepdim=True)
            self._rotates.append(_differ(moved_key - middle, key - middle))
            if not self._rotates[layer]:
                continue
            with errors_in_words(f"{name} cannot have stair positions: its RoPE is of an unknown kind"):
                turned = self._rotated(layer, key, moved_1S - rows_1S)
                not_turned = self._rotated(layer, key.float(), 0 * rows_1S)  # YaRN's are longer
                if _differ(turned, moved_key) or _differ(not_turned, key.float()):
                    raise ValueError("its rotations are not additive")
        if not any(self._rotates):
            raise InputError(f"{name} cannot have stair positions: it has no RoPE")
        self._stair = stair

    def _rotated(self, layer: int, rows_BHSE: torch.Tensor, shifts_BS: torch.Tensor) -> torch.Tensor:
        """Queries or keys that the model has rotated, rotated on by so many position IDs."""
        rotary = self._base.rotary_emb
        kinds = getattr(self._config, "layer_types", None)
        of_layer = [kinds[layer]] if kinds and "layer_type" in signature(rotary.forward).parameters else []
        cosine, sine = (part.to(rows_BHSE.device) for part in rotary(rows_BHSE, shifts_BS, *of_layer))
        width = cosine.shape[-1]
        rotate = vars(sys.modules[type(self._base).__module__])["apply_rotary_pos_emb"]
        part = rows_BHSE[..., :width]  # RoPE may leave the rest of a head as it is
        return torch.cat((rotate(part, part, cosine, sine)[0], rows_BHSE[..., width:]), dim=-1)

    def _far_scores(
        self,
        query_ids_BS: torch.Tensor,
        key_ids_BK: torch.Tensor,
        layer: int,
        rows: slice,
        scores_BHRK: torch.Tensor,
        visible: torch.Tensor,
        query_BHRE: torch.Tensor,
        key_BHKE: torch.Tensor,
    ) -> torch.Tensor:
        """The scores, at `_stair`'s distances if a key is far from its query; see `ScoreChange`."""
        if self._stair is None or not self._rotates[layer]:
            return scores_BHRK
        # Layers may be spread over devices, and position IDs are where the first one is.
        query_ids_BR = query_ids_BS[:, rows].to(scores_BHRK.device)
        key_ids_BK = key_ids_BK[:, : key_BHKE.shape[2]].to(scores_BHRK.device)
        far_query_ids_BR, far_key_ids_BK = self._stair.far_ids(query_ids_BR, key_ids_BK)
        query_BHRE = self._rotated(layer, query_BHRE, far_query_ids_BR - query_ids_BR)
        key_BHKE = self._rotated(layer, key_BHKE, far_key_ids_BK - key_ids_BK)
        is_far_BRK = query_ids_BR[..., None] - key_ids_BK[:, None] >= self._stair.near
        return torch.where(is_far_BRK[:, None], query_BHRE @ key_BHKE.transpose(-1, -2), scores_BHRK)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scaled and soft-capped as the family does."""
        logits = self._model.get_output_embeddings()(hidden).to(self.device)
        if scale := getattr(self._config, "logit_scale", None):  # Cohere
            logits = logits * scale
        if divisor := getattr(self._config, "logits_scaling", None):  # Granite
            logits = logits / divisor
        if cap := getattr(self._config, "final_logit_softcapping", None):  # Gemma
            logits = (logits / cap).tanh() * cap
        return logits


def _slopes_of(base: Any) -> torch.Tensor:
    """The slopes of a BLOOM's or an MPT's heads, by its own code: float32 [H]."""
    num_heads = base.num_heads
    if hasattr(base, "build_mpt_alibi_tensor"):
        bias_H2 = base.build_mpt_alibi_tensor(num_heads, 2)[:, 0]
    else:
        bias_H2 = base.build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)[:, 0]
    # From one token to the next a bias rises by the slope.
    return bias_H2[:, 1] - bias_H2[:, 0]


def load_hugging_face(
    folder: Path,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    device_map: str | None = None,
    trust_remote_code: bool = False,
    rope: RopeScaling | Stair | None = None,
    num_positions: int,
) -> HuggingFaceCausalLM:
    """Load a causal LM from a folder as `save_pretrained` and the hub's snapshots have it; tensors only.

    It goes to `device`, or where a `device_map` of accelerate's says. Position IDs will be below
    `num_positions`. InputError if it is no causal LM, incomplete, without RoPE to be changed by `rope`, or as
    of `as_causal_lm`. All its weights are the folder's, and no other.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = configuration_of(folder, trust_remote_code)
    if isinstance(rope, Stair) and rope.near >= num_positions:
        raise InputError(
            f"--rope {rope}: of {num_positions} position IDs none are {rope.near} or more apart, so nothing"
            " would change; choose a smaller W"
        )
    if isinstance(rope, RopeScaling):
        text = config.get_text_config()
        own = getattr(text, "rope_parameters", None)
        text.rope_parameters = rope.scaled(own, getattr(text, "max_position_embeddings", None), str(folder))
    # Of a model of pictures and text, the text's part is measured.
    kinds_of_models = (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText)
    known = [kind for kind in kinds_of_models if type(config) in kind._model_mapping]
    with errors_in_words(f"{folder} cannot be loaded as a causal LM"):
        model, loading = (known or kinds_of_models)[0].from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
            # Told below, while the library would only point to its log.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    # Older versions of the library saved with the weights what it computes anew.
    computed = {name for name, _ in model.named_buffers()}
    left_over = {
        name for name in loading["unexpected_keys"] if name not in computed and not _NOT_NEEDED.search(name)
    }
    missing = {*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])}
    for what, names in (("lacks", sorted(missing)), ("has no place in it for", sorted(left_over))):
        if names:  # random numbers would be used for what it lacks
            raise InputError(
                f"{folder} is not the weights of a {type(model).__name__}: it {what} {len(names)}, such as"
                f" {names[0]}; put back the config.json that was saved with them (tie_word_embeddings says"
                " that the output embedding is the input's) and the shards that their index names"
            )
    # A family may have parameters of RoPE that its code never reads.
    kinds = [str(getattr(module, "rope_type", "")) for module in model.modules()]
    if isinstance(rope, RopeScaling) and not any(rope.kind in kind for kind in kinds):
        raise InputError(f"the code of {folder} does not scale RoPE by {rope.kind}: leave --rope out")
    if device_map is None:
        model = model.to(device)
    lm = as_causal_lm(model, str(folder), num_positions)
    if isinstance(rope, Stair):
        lm.climb(rope, str(folder))
    return lm


def as_causal_lm(model: transformers.PreTrainedModel, name: str, num_positions: int) -> HuggingFaceCausalLM:
    """A model of the library, as it lies in memory, to be measured; `name` is what messages call it.

    Its attention becomes ours. A warning says which share of the layers has windows that cut something.
    InputError if it has no place for so many positions, or does not obey (`check_model`).
    """
    # Rotations exist for any ID, rows of a table do not.
    is_rotary = any("RotaryEmbedding" in type(module).__name__ for module in model.modules())
    limit = position_limit(model.config, is_rotary)
    if limit is not None and num_positions > limit:
        raise InputError(
            f"{name} can be measured at {limit} positions at most, not {num_positions}"
            " (--long-context-length, --placements): beyond, its attention is cut into chunks or chooses"
            " tokens by an index, its table of positions ends, or its RoPE changes frequencies"
        )
    lm = HuggingFaceCausalLM(model, num_positions)
    check_model(lm, name, num_positions)
    _refuse_sparse(lm, name, num_positions)
    if lm.window is not None:
        logger.warning(
            "%d of the %d layers of %s have windows of %d positions: with the tokens between masked, those"
            " beyond a window are seen by the other layers alone",
            *(sum(lm._slides), len(lm._slides), name, lm.window),
        )
    return lm


def configuration_of(folder: Path, trust_remote_code: bool) -> transformers.PretrainedConfig:
    """What the config.json of a folder says."""
    with errors_in_words(f"{folder / 'config.json'} cannot be used"):
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)


_NOT_NEEDED = re.compile(
    r"(^|\.)(inv_freq|cos_cached|sin_cached|position_ids|masked_bias)$|^(vision_model|multi_modal_projector)\."
)
"""Weights that may be left over: those that the library computes anew, and of Llama 4 those for pictures."""


def position_limit(config: transformers.PretrainedConfig, has_rotary_embedding: bool) -> int | None:
    """The number that a model's position IDs must be below, by its configuration.

    Below it no chunk of attention ends, an indexer chooses all tokens, no table of positions runs out, and no
    RoPE changes its frequencies with the length of the input: a short context would be given others than the
    long one. Windows that slide are no limit. None: any ID may be used. Without rotations also how many
    positions it was made for.
    """
    text: Any = config.get_text_config()
    longest: int | None = getattr(text, "max_position_embeddings", None)
    # An indexer has each row attend to its `index_topk` best tokens, which are all of so many.
    limits: list[int | None] = [None if has_rotary_embedding else longest, getattr(text, "index_topk", None)]
    if "chunked_attention" in (getattr(text, "layer_types", None) or ()):
        limits.append(text.attention_chunk_size)
    rope = getattr(text, "rope_parameters", None) or {}
    # One set of parameters, or one for each kind of layer (Gemma 3).
    for parameters in (rope, *rope.values()):
        kind = parameters.get("rope_type") if isinstance(parameters, Mapping) else None
        if kind in ("longrope", "dynamic"):
            # Up to the original length the frequencies stay the same.
            limits.append(parameters.get("original_max_position_embeddings") or longest)
        if kind == "dynamic":  # the library goes by the configuration's number alone
            limits.append(longest)
    return min((limit for limit in limits if limit and limit > 0), default=None)


_SPARSE = re.compile(r"(^|_)(index|indexer|sparse|chunk|block|window|stride|compress|keep|local)(_|$)")
_HARMLESS = re.compile(
    r".*sliding_window(_pattern)?|attention_chunk_size|max_window_layers"
    r"|.*(token_index|layer_\w*index|sparse_step|experts|rope|to_keep|dropout).*"
)
"""Fields of configurations that `_SPARSE` finds, and that are known, or no matter of attention."""


@torch.inference_mode()
def _refuse_sparse(lm: HuggingFaceCausalLM, name: str, num_positions: int) -> None:
    """Compare states of a text of full length, if the configuration hints that attention leaves tokens out.

    `check_model` reads too few tokens to notice it: of blocks, strides, or the best so many.
    """
    fields = lm._config.to_dict()
    known = {"full_attention", "sliding_attention", "chunked_attention"}
    hints = {*(fields.get("layer_types") or ())} - known
    hints |= {key for key in fields if fields[key] and _SPARSE.search(key) and not _HARMLESS.fullmatch(key)}
    if not hints:
        return
    generator = torch.Generator().manual_seed(1)
    token_ids_1S = torch.randint(lm.vocabulary_size, (1, num_positions), generator=generator).to(lm.device)
    rows_1S = torch.arange(num_positions, device=lm.device)[None]
    with errors_in_words(f"{name} cannot be measured: it fails on a text of {num_positions} tokens"):
        found = lm.hidden_states(token_ids_1S, rows_1S, None, None)
        lm._model.set_attn_implementation("eager")
        stock = lm._base(input_ids=token_ids_1S, use_cache=False).last_hidden_state.to(lm.device)
    lm._model.set_attn_implementation(OURS)
    if _differ(found, stock):
        raise InputError(
            f"{name} cannot be measured on {num_positions} tokens: its attention leaves some of them out"
            f" ({', '.join(sorted(hints))} in its configuration)"
        )


_NUM_TOKENS = 24
# Of the largest logit's distance from the mean. Rounding stays well below; reading a token from another place
# does not.
_TOLERANCE = 1e-3
_COARSE_TOLERANCE = 5e-2


def check_model(lm: HuggingFaceCausalLM, name: str, num_positions: int) -> None:
    """Compare the model as `CausalLM` runs it with the model left alone, on a few tokens; else an InputError.

    A family that was never tested may treat future, visibility, position IDs or prefix in its own way, and
    the numbers would be wrong without a sign of it. Windows are narrowed meanwhile: these few tokens must
    reach beyond them.
    """
    generator = torch.Generator().manual_seed(0)
    size = (1, min(_NUM_TOKENS, max(2, num_positions)))
    token_ids_1S = torch.randint(lm.vocabulary_size, size, generator=generator).to(lm.device)
    window = lm.window
    if window is not None:
        # In both places: the stock pass reads the configuration, ours `window`.
        lm.window = lm._config.sliding_window = max(1, size[1] // 3)
    fault = (
        ""
        if lm._model._supports_attention_backend or lm._slopes_H is not None
        else "its layers attend in a way of their own, or not at all, and cannot be told what to see"
    )
    with errors_in_words(
        f"{name} cannot be measured: "
        + (fault or "it fails when it is given position IDs, visibility and a prefix")
    ):
        promises = _promises(lm, token_ids_1S)
        broken = next((clause for found, expected, clause in promises if _differ(found, expected)), None)
    if window is not None:
        lm.window = lm._config.sliding_window = window
    if broken is not None:
        raise InputError(f"{name} cannot be measured: {fault or broken}")


@torch.inference_mode()
def _promises(
    lm: HuggingFaceCausalLM, token_ids_1S: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, str]]:
    """Logits that must be alike, and what the model does not do if they differ, in a clause."""
    num_rows = token_ids_1S.shape[1]
    half = num_rows // 2
    rows_1S = torch.arange(num_rows, device=lm.device)[None]
    # A second text begins like the first, and then is another: causal rows cannot tell their first halves
    # apart, and rows that mix across a batch show.
    other_1S = torch.cat((token_ids_1S[:, :half], token_ids_1S.flip(1)[:, half:]), dim=1)
    texts_2S = torch.cat((token_ids_1S, other_1S))
    lm._model.set_attn_implementation("eager")  # the library's own, as plain tensor operations
    stock = [lm._model(input_ids=text_1S, use_cache=False).logits for text_1S in (token_ids_1S, other_1S)]
    stock_2SV = torch.cat(stock).to(lm.device)
    lm._model.set_attn_implementation(OURS)
    yield stock_2SV, stock_2SV, "its logits are not finite numbers"  # NaN is not even itself
    yield (
        stock_2SV[1, :half],
        stock_2SV[0, :half],
        "its prediction for a token changes with the tokens after it, so it is not causal (an encoder?)",
    )

    def logits(token_ids_BS: torch.Tensor, position_ids_1S: torch.Tensor, *seen: Any) -> torch.Tensor:
        hidden_BSD = lm.hidden_states(token_ids_BS, position_ids_1S, *seen)
        return lm.logits(hidden_BSD.flatten(0, 1)).unflatten(0, hidden_BSD.shape[:2])

    full_2SV = logits(texts_2S, rows_1S, None, None)
    yield (
        full_2SV,
        stock_2SV,
        "its logits are not its output embedding of its last hidden states, scaled in a known way, or differ"
        " in a batch of two texts",
    )
    # Of 24 rows, 0 to 5 and 12 to 23: a gap, as leaving tokens out makes it.
    kept_1N = torch.cat((rows_1S[:, : num_rows // 4], rows_1S[:, half:]), dim=1)
    visible_1SS = causal_visibility(num_rows, lm.device) & torch.isin(rows_1S, kept_1N)
    yield (
        logits(texts_2S[:, kept_1N[0]], kept_1N, None, None),
        logits(texts_2S, rows_1S, visible_1SS, None)[:, kept_1N[0]],
        "tokens left out at kept position IDs are not the same to it as tokens hidden by a mask",
    )
    # Cut from all rows: keys and values of a causal model do not depend on what comes after them.
    prefix = lm.read(token_ids_1S, rows_1S, None, None)[1].first(half)
    yield (
        logits(texts_2S[:, half:], rows_1S[:, half:], None, None, prefix),
        full_2SV[:, half:],
        "it does not read on from a shared prefix as from the tokens themselves",
    )


def _differ(found: torch.Tensor, expected: torch.Tensor) -> bool:
    largest = (expected.float() - expected.float().mean()).abs().max()
    worst = (found.float() - expected.float()).abs().amax(dim=-1)
    # Written so that a NaN differs.
    if expected.dtype == torch.float32:
        return not bool(worst.max() <= _TOLERANCE * largest)
    # Rounding may send a few rows to another expert where experts are chosen: half of the rows must agree.
    return not bool(worst.median() <= _COARSE_TOLERANCE * largest)
