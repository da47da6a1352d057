"""Hugging Face causal LMs behind the `CausalLM` interface.

The model's own code runs; ours is what it is given: position IDs, a mask, the keys and values of a shared
prefix. A model must show on a few tokens, when it is loaded, that it obeys (`check_model`), or it is refused.
A prefix is copied in front of each sequence's own rows, unless the library lets attention be replaced: then
ours (`attention.py`) looks at it without copies. Derivatives take the library's attention "eager": only there
does every family add our mask to its scores.

A sliding window counts position IDs. So a token left out keeps its place in the windows of others, as where a
stock model is given a mask that hides it. A prefix is copied where windows cut: not all rows see all of it.

Shapes: B batch, S rows, P rows of a prefix, K = S or P + S, T query rows, D width, H heads, G key-value
heads, E head width, V vocabulary, N any number of rows.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from pipeline.cli import InputError, cause_of
from pipeline.models.attention import added_to_scores, attend
from pipeline.models.interface import (
    CausalLM,
    Kept,
    KeysAndValues,
    NotInspectableError,
    OfHeads,
    Prefix,
    causal_visibility,
    rows_of,
    visibility_of_all,
)
from pipeline.models.unusable import refuse_other_weights

OURS = "attention_with_shared_prefix"
"""Name of our attention among the library's."""


class PassCache(transformers.DynamicCache):
    """The cache of one forward pass: shows every sequence the same prefix, and keeps the new rows apart.

    The library's own caches grow by what they are shown; a prefix shared by many passes must not. Where it
    `goes_apart`, the prefix, if any, and the mask are left to our attention, and the model's own code never
    sees them: all rows see all of the prefix, and of each other what `visible_BSS` says (as `attend` has it).
    """

    def __init__(
        self, prefix: Prefix | None, visible_BSS: torch.Tensor | None = None, goes_apart: bool = False
    ) -> None:
        super().__init__()
        self.prefix, self.goes_apart = prefix, goes_apart
        self.visible_B1SS = None if visible_BSS is None else visible_BSS[:, None]
        self._read: dict[int, KeysAndValues] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows before those of this pass, as far as the model's own code should know."""
        return 0 if self.prefix is None or self.goes_apart else self.prefix.num_rows

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> KeysAndValues:
        """What the rows of this pass look at in a layer: the prefix's keys and values and their own."""
        self._read[layer_idx] = (key_states, value_states)
        if self.prefix is None or self.goes_apart:
            return key_states, value_states
        key, value = (
            part.expand(len(key_states), -1, -1, -1) for part in self.prefix.keys_and_values[layer_idx]
        )
        return torch.cat((key, key_states), dim=2), torch.cat((value, value_states), dim=2)

    def read_rows(self, position_ids_1S: torch.Tensor) -> Prefix:
        """What the pass has read, as a prefix for others."""
        return Prefix(tuple(self._read[layer] for layer in range(len(self._read))), position_ids_1S)


_RUNNING: ContextVar[PassCache | None] = ContextVar("the pass that our attention runs in", default=None)
"""Our attention finds the prefix there, which the library does not hand it."""


Watch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
_WATCHING: ContextVar[Watch | None] = ContextVar("who is shown the heads of a pass", default=None)


def _attend(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, scaling: float | None = None, softcap: float | None = None,
    **further: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """The library's `sdpa`, save in passes that leave the prefix to us or show their heads: [B, S, H, E]."""
    running, watch = _RUNNING.get(), _WATCHING.get()
    if running is None and watch is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **further)
    unknown = [name for name in ("position_bias", "s_aux") if further.get(name) is not None]
    if unknown or (softcap and watch is None):
        raise NotImplementedError(f"attention with {', '.join(unknown) or 'softcap'}")
    if running is not None:
        visible = running.visible_B1SS
        visible = None if visible is None else visible.to(query.device)
        layer = cast("int", module.layer_idx)
        past = None if running.prefix is None else running.prefix.keys_and_values[layer]
        attended = attend(query, key, value, past, visible, scaling)
    else:
        assert watch is not None and attention_mask is not None
        num_sharing, scale = query.shape[1] // key.shape[1], scaling or query.shape[-1] ** -0.5
        key, value = (part.repeat_interleave(num_sharing, dim=1) for part in (key, value))
        scores_1HSS = scale * query.float() @ key.float().transpose(-1, -2)
        if softcap:
            scores_1HSS = softcap * torch.tanh(scores_1HSS / softcap)
        weights_1HSS = (scores_1HSS + attention_mask).softmax(-1)
        watch(query[0].float() * scale * query.shape[-1] ** 0.5, key[0].float(), weights_1HSS[0])
        attended = weights_1HSS.to(value.dtype) @ value
    return attended.transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register(OURS, _attend)
transformers.AttentionMaskInterface.register(OURS, sdpa_mask)


def _arguments(model: transformers.PreTrainedModel) -> set[str]:
    return set(inspect.signature(model.base_model.forward).parameters)


class HuggingFaceCausalLM(CausalLM):
    """A Hugging Face causal LM; `load_hugging_face` makes sure that it is of a kind that can be measured.

    Position IDs will be below `num_positions`, where that is given: a window as wide cuts nothing.
    """

    _model: transformers.PreTrainedModel

    def __init__(self, model: transformers.PreTrainedModel, num_positions: int | None = None) -> None:
        super().__init__(model)
        self._config = model.config.get_text_config()
        width = sliding_window(self._config)
        self.window = width if width and (num_positions is None or num_positions > width) else None
        """How many position IDs a row sees in layers that slide, its own included; None: nothing is cut."""
        # What its layers call the cache they are given; it was renamed in transformers 5.2x.
        self._cache_argument = "cache" if "cache" in _arguments(model) else "past_key_values"
        if getattr(self._config, "attn_logit_softcapping", None):
            # Fused attention cannot cap its scores, and some versions of the library drop the cap in silence.
            model.set_attn_implementation("eager")

    @property
    def shares_prefix(self) -> bool:
        """Whether a prefix is looked at as it is, without a copy for every sequence."""
        return self._config._attn_implementation == OURS and self.window is None

    def share_prefix(self, is_shared: bool) -> None:
        """Look at prefixes with our attention in place of torch's; nothing where the model has its own.

        Whether a family's code lets us is to be tried (`check_model`).
        """
        now, wanted = ("sdpa", OURS) if is_shared else (OURS, "sdpa")
        if self._config._attn_implementation == now and self._model._can_set_attn_implementation():
            self._model.set_attn_implementation(wanted)

    @property
    def vocabulary_size(self) -> int:
        """Many families pad it beyond their tokenizer's."""
        return self._model.get_output_embeddings().weight.shape[0]

    @property
    def device(self) -> torch.device:
        """With a device map, where the embedding is."""
        return self._model.get_input_embeddings().weight.device

    def sequence_bytes(self, num_rows: int, num_prefix_rows: int) -> int:
        """What one layer holds at once."""
        config, width = self._config, self._config.hidden_size
        hidden_width = getattr(config, "intermediate_size", None) or 4 * width
        num_seen = num_rows if self.shares_prefix else num_prefix_rows + num_rows
        values = num_rows * (3 * width + max(10 * width, 3 * hidden_width)) + 4 * width * num_seen
        if not self.shares_prefix:  # a mask; where windows cut, of each sequence, and whom they cut
            values += (1 if self.window is None else 2) * num_rows * num_seen
        # Attention written out holds the scores twice in float32; fused attention holds none.
        is_written_out = config._attn_implementation == "eager"
        scores = config.num_attention_heads * num_rows * num_seen if is_written_out else 0
        return self.dtype.itemsize * values + 8 * scores

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """Scaled where the family's embedding does that."""
        return self._model.get_input_embeddings()(token_ids_1S)

    def _run(
        self, tokens: torch.Tensor, position_ids_BS: torch.Tensor, visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None, prefix: Prefix | None = None, *, keeps_rows: bool = False,
    ) -> tuple[torch.Tensor, Prefix | None]:  # fmt: skip
        """All rows are computed, in every layer."""
        sees_all_past = visible_BSK is None or visible_BSK.shape[-1] == tokens.shape[1]
        goes_apart = sees_all_past and self.shares_prefix
        if visible_BSK is not None and not goes_apart and visible_BSK.shape[1] < tokens.shape[1]:
            visible_BSK = visibility_of_all(visible_BSK, tokens.shape[1])
        cache = None
        if keeps_rows or prefix is not None or goes_apart:
            cache = PassCache(prefix, visible_BSK if goes_apart else None, goes_apart)
        before = _RUNNING.set(cache if goes_apart else None)
        try:
            output = self._run_layers(tokens, position_ids_BS, visible_BSK, cache)
        finally:
            _RUNNING.reset(before)
        hidden_BTD = rows_of(output.last_hidden_state.to(self.device), query_rows_BT)
        return hidden_BTD, cache.read_rows(position_ids_BS) if cache is not None and keeps_rows else None

    def _run_layers(
        self, tokens: torch.Tensor, position_ids_BS: torch.Tensor, visible_BSK: torch.Tensor | None,
        cache: PassCache | None,
    ) -> Any:  # fmt: skip
        """The library's output of all layers."""
        if cache is not None and cache.goes_apart:
            visible_BSK = causal_visibility(1, tokens.device)  # our attention looks at its own
        elif visible_BSK is None:
            # Never left to the library: without a mask it takes a gap in the position IDs for the border of
            # two packed sequences, and cuts the attention there.
            visible_BSK = causal_visibility(tokens.shape[1], tokens.device)
        given = {"inputs_embeds" if tokens.is_floating_point() else "input_ids": tokens}
        return self._model.base_model(
            **given, **{self._cache_argument: cache},
            position_ids=position_ids_BS.expand(tokens.shape[:2]),
            attention_mask=self._mask(position_ids_BS, visible_BSK, cache),
            use_cache=cache is not None, return_dict=True,
        )  # fmt: skip

    def _mask(
        self, position_ids_BS: torch.Tensor, visible_BSK: torch.Tensor, cache: PassCache | None
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """What is added to the scores of all layers, or of each kind of layer."""
        num_past = 0 if cache is None else cache.get_seq_length()
        added_B1SK = added_to_scores(visible_BSK, num_past, self.dtype)
        if self.window is None:
            return added_B1SK
        # The library cuts no windows into a mask that it is given.
        ids_BK = position_ids_BS
        if cache is not None and cache.prefix is not None:
            past_BP = cache.prefix.position_ids_BP
            assert past_BP is not None, "every prefix of ours has them"
            batch_size = max(len(past_BP), len(ids_BK))
            ids_BK = torch.cat([ids.expand(batch_size, -1) for ids in (past_BP, ids_BK)], dim=1)
        is_beyond_BSK = ids_BK[:, None] + self.window <= position_ids_BS[..., None]
        near_B1SK = added_B1SK.masked_fill(is_beyond_BSK[:, None], torch.finfo(self.dtype).min)
        if getattr(self._config, "layer_types", None) is None:
            return near_B1SK
        return {"full_attention": added_B1SK, "sliding_attention": near_B1SK}

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scaled and soft-capped as the family does."""
        logits = self._model.get_output_embeddings()(hidden).to(self.device)
        if scale := getattr(self._config, "logit_scale", None):  # Cohere
            logits = logits * scale
        if divisor := getattr(self._config, "logits_scaling", None):  # Granite
            logits = logits / divisor
        if cap := getattr(self._config, "final_logit_softcapping", None):  # Gemma
            logits = (logits / cap).tanh() * cap
        return logits

    @contextmanager
    def derivable_attention(self, implementation: str = "eager") -> Iterator[None]:
        """Attention as plain tensor operations for a while, then as it was before."""
        before = self._model.config._attn_implementation
        if before != implementation and not self._model._can_set_attn_implementation():
            raise self._not_inspectable("its attention is written in one form, which shows no weights")
        self._model.set_attn_implementation(implementation)
        try:
            yield
        finally:
            self._model.set_attn_implementation(before)

    @contextmanager
    def narrowed_window(self, width: int) -> Iterator[None]:
        """Windows of another width for a while, the library's too, where there are any that cut."""
        before = self.window
        if before is not None:
            self.window = self._config.sliding_window = width
        try:
            yield
        finally:
            if before is not None:
                self.window = self._config.sliding_window = before

    @torch.inference_mode()
    def watch_heads(
        self, token_ids_1S: torch.Tensor, position_ids_1S: torch.Tensor, visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor | None, of_layer: OfHeads[Kept],
    ) -> list[Kept]:  # fmt: skip
        """See `CausalLM.watch_heads`."""
        kept, num_layers = list[Kept](), self._config.num_hidden_layers

        rows_T = slice(None) if query_rows_T is None else query_rows_T.to(self.device)

        def watch(*heads: torch.Tensor) -> None:
            queries, keys, attention = (part.to(self.device) for part in heads)
            kept.append(of_layer(queries, keys, attention[:, rows_T]))

        before = _WATCHING.set(watch)
        try:
            with self.derivable_attention(OURS):
                self._run_layers(token_ids_1S, position_ids_1S, visible_1SS, None)
        except NotImplementedError as error:
            raise self._not_inspectable(f"it has {error}") from error
        finally:
            _WATCHING.reset(before)
        if len(kept) != num_layers:
            raise self._not_inspectable(f"{len(kept)} of its {num_layers} layers show their heads")
        return kept

    def _not_inspectable(self, reason: str) -> NotInspectableError:
        return NotInspectableError(f"{type(self._model).__name__} cannot be looked into: {reason}")

    @torch.inference_mode()
    def stock_logits(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """What the model says when nothing is chosen for it, [S, V]: the witness of `check_model`."""
        return self._model(input_ids=token_ids_1S, use_cache=False).logits[0].to(self.device)


def load_hugging_face(
    folder: Path, *, device: torch.device, dtype: torch.dtype = torch.float32,
    device_map: str | None = None, trust_remote_code: bool = False, num_positions: int,
    gguf: str | None = None,
) -> HuggingFaceCausalLM:  # fmt: skip
    """Load a causal LM from a folder as `save_pretrained` and the hub's snapshots have it; tensors only.

    `gguf` is the file of the folder that holds the model, if it is one of GGUF; its weights are unpacked.
    It goes to `device`, or where a `device_map` of accelerate's says. Position IDs will be below
    `num_positions`. InputError if it is no causal LM, incomplete, has no place for so many positions, or
    does not obey (`check_model`).
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = _stock_model(folder, dtype, device_map, trust_remote_code, gguf)
    if device_map is None:
        model = model.to(device)
    return as_causal_lm(model, str(folder), num_positions)


def as_causal_lm(model: transformers.PreTrainedModel, name: str, num_positions: int) -> HuggingFaceCausalLM:
    """A model of the library, as it lies in memory, to be measured; `name` is what messages call it.

    It may get another attention. InputError as of `load_hugging_face`.
    """
    if "position_ids" not in _arguments(model):
        raise InputError(
            f"{type(model).__name__} in {name} takes no position IDs, so tokens cannot keep theirs when"
            " others are left out"
        )
    # Rotations exist for any ID, rows of a table do not.
    is_rotary = any("RotaryEmbedding" in type(module).__name__ for module in model.modules())
    limit = position_limit(model.config.get_text_config(), is_rotary)
    if limit is not None and num_positions > limit:
        raise InputError(
            f"{name} can be measured up to --long-context-length {limit}, not {num_positions}: beyond, its"
            " attention is cut into chunks, its table of positions ends, or its RoPE changes frequencies"
        )
    lm = HuggingFaceCausalLM(model, num_positions)
    lm.share_prefix(lm.window is None)
    try:
        check_model(lm, name, num_positions)
    except InputError:
        if not lm.shares_prefix:
            raise
        lm.share_prefix(False)
        check_model(lm, name, num_positions)
    return lm


def positions_of(config: Any) -> int | None:
    """How many positions a model was made for, by its configuration: trained, or in a table."""
    config = config.get_text_config()
    limits = getattr(config, "max_position_embeddings", None), position_limit(config, True)
    return min((limit for limit in limits if limit), default=None)


def config_of(folder: Path, trust_remote_code: bool, gguf: str | None = None) -> Any:
    """The library's configuration of a model in a folder; InputError where it has none that can be used."""
    try:
        return transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code, **_file(gguf)
        )
    except Exception as error:  # by version and fault OSError, ValueError, KeyError, or what its code raises
        raise InputError(f"{folder / (gguf or 'config.json')} cannot be used: {_reason(error)}") from error


def _file(gguf: str | None) -> dict[str, str]:
    return {} if gguf is None else {"gguf_file": gguf}


# Tables and masks that older versions of the library saved with the weights, and computes anew.
_COMPUTED = re.compile(r"(^|\.)(inv_freq|cos_cached|sin_cached|position_ids|masked_bias)$")


def _stock_model(
    folder: Path, dtype: torch.dtype, device_map: str | None, trust_remote_code: bool, gguf: str | None
) -> transformers.PreTrainedModel:
    """The causal LM in the folder, as the library has it; all its weights are the folder's, and no other."""
    try:
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, device_map=device_map, trust_remote_code=trust_remote_code,
            # Told below, where the library would only point to its log.
            ignore_mismatched_sizes=True, output_loading_info=True, **_file(gguf),
        )  # fmt: skip
    except Exception as error:  # the library's, safetensors', pickle's, accelerate's or remote code's own
        raise InputError(f"{folder} cannot be loaded as a causal LM: {_reason(error)}") from error
    computed = {name for name, _ in model.named_buffers()}
    computed |= {name for name in loading["unexpected_keys"] if _COMPUTED.search(name)}
    left_over = loading["unexpected_keys"] - computed
    if gguf is not None:
        left_over |= _left_out_of_gguf(folder / gguf, model)
    missing = {*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])}
    refuse_other_weights(folder, f"a {type(model).__name__}", left_over, missing)
    return model


def _left_out_of_gguf(path: Path, model: transformers.PreTrainedModel) -> set[str]:
    """The tensors of a GGUF file that the library has left out, of which it says nothing.

    None where the model has as many numbers as the file: some families' tensors come under other names.
    """
    from gguf import GGUFReader  # late: an extra
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    tensors, saved = GGUFReader(path).tensors, model.state_dict().keys()
    num_kept = sum(buffer.numel() for name, buffer in model.named_buffers() if name in saved)
    num_kept += model.num_parameters()
    if sum(int(tensor.n_elements) for tensor in tensors) <= num_kept:
        return set()
    processor = TENSOR_PROCESSORS.get(model.config.model_type, TensorProcessor)(config={})
    return {tensor.name for tensor in tensors} - get_gguf_hf_weights_map(model, processor).keys()


def _reason(error: Exception) -> str:
    """What tells the cause in the library's message, which may be pages long."""
    if "trust_remote_code" in str(error):
        return "it needs the Python files that come with it; where you trust them, --trust-remote-code"
    return cause_of(error)


def sliding_window(config: Any) -> int | None:
    """How many tokens, itself included, a token looks at in the layers that slide; None where none does."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:  # without a word for each layer, the family slides in all of them or in none
        slides = getattr(config, "use_sliding_window", True)
    else:
        slides = "sliding_attention" in layer_types
    return getattr(config, "sliding_window", None) if slides else None


# What a layer may be told to do; any other word of `layer_types` (linear attention, state spaces, …) is a
# layer into which edges cannot be cut.
_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}


def position_limit(config: Any, has_rotary_embedding: bool) -> int | None:
    """Below which number a model's position IDs must be, by the `config` of its text model.

    Below it no chunk of attention ends, no table of positions runs out, and no RoPE changes its frequencies
    with the length of the input: a short context would be given others than the long one. Windows that slide
    are no limit. None: any ID may be used. InputError if a kind of layer is not known here.
    """
    layer_types = set(getattr(config, "layer_types", None) or ())
    if unknown := layer_types - _LAYER_TYPES:
        raise InputError(
            f"{config.model_type} has layers of the kind {', '.join(sorted(unknown))}, which cannot be"
            " told whom to look at; only attention layers can"
        )
    longest: Any = getattr(config, "max_position_embeddings", None)
    limits: list[int | None] = [None if has_rotary_embedding else longest]
    if "chunked_attention" in layer_types:
        limits.append(config.attention_chunk_size)
    if "local" in getattr(config, "attention_layers", ()):  # GPT-Neo
        limits.append(config.window_size)
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):
        kind = parameters.get("rope_type") if isinstance(parameters, Mapping) else None
        original = longest if kind is None else parameters.get("original_max_position_embeddings") or longest
        if kind == "longrope":
            limits.append(original)
        if kind == "dynamic":  # the library goes by the configuration's number alone
            limits.append(min(original, longest))
    return min((limit for limit in limits if limit), default=None)


_NUM_TOKENS = 24
# Of the largest logit's distance from the mean. Rounding stays well below; reading a token from another place
# does not.
_TOLERANCE = 1e-3
_COARSE_TOLERANCE = 5e-2


def check_model(lm: HuggingFaceCausalLM, name: str, num_positions: int) -> None:
    """Compare the model as `CausalLM` runs it with the model left alone, on a few tokens; else an InputError.

    A family that was never tested may treat future, mask, position IDs or prefix in its own way, and the
    numbers would be wrong without a sign of it. Windows are narrowed meanwhile: these few tokens must reach
    beyond them.
    """
    generator = torch.Generator().manual_seed(0)
    size = 1, min(_NUM_TOKENS, num_positions)
    token_ids_1S = torch.randint(lm.vocabulary_size, size, generator=generator).to(lm.device)
    try:
        with lm.narrowed_window(max(1, size[1] // 3)):
            broken = next(_broken_promises(lm, token_ids_1S), None)
    except Exception as error:  # code of any family, met with arguments that it may not have been written for
        raise InputError(
            f"{name} fails when it is told position IDs, a mask and a prefix"
            f" ({type(error).__name__}: {_reason(error)}), so it cannot be measured"
        ) from error
    if broken:
        raise InputError(f"{name} cannot be measured: {broken}")


def _broken_promises(lm: HuggingFaceCausalLM, token_ids_1S: torch.Tensor) -> Iterator[str]:
    def logits(
        rows: slice | torch.Tensor, visible: torch.Tensor | None = None, *past: Prefix
    ) -> torch.Tensor:
        inputs = token_ids_1S[:, rows], rows_S[None, rows], visible
        return lm.logits(lm.hidden_states(*inputs, None, *past)[0])

    num_rows, device = token_ids_1S.shape[1], token_ids_1S.device
    rows_S, half = torch.arange(num_rows, device=device), num_rows // 2
    stock_SV = lm.stock_logits(token_ids_1S)
    if not stock_SV.isfinite().all():
        yield "its logits are not finite numbers"
    if _differ(lm.stock_logits(token_ids_1S[:, :-1]), stock_SV[:-1]):
        yield "its prediction for a token changes with the tokens after it, so it is not causal (an encoder?)"
    full_SV = logits(slice(None))
    if _differ(full_SV, stock_SV):
        yield "its logits are not its output embedding of its last hidden states, scaled in a known way"
    is_kept_S = (rows_S < num_rows // 4) | (rows_S >= half)
    hidden_SV = logits(slice(None), causal_visibility(num_rows, device) & is_kept_S)
    if _differ(logits(is_kept_S), hidden_SV[is_kept_S]):
        yield "tokens left out at kept position IDs are not the same to it as tokens hidden by a mask"
    prefix = lm.read(token_ids_1S, rows_S[None], None, None)[1].first(half)
    if _differ(logits(slice(half, None), None, prefix), full_SV[half:]):
        yield "it does not read on from a shared prefix as from the tokens themselves"
    both_2S = torch.cat((token_ids_1S, token_ids_1S.flip(1)))[:, half:]
    second = lm.logits(lm.hidden_states(both_2S[1:], rows_S[None, half:], None, None, prefix)[0])
    batch_2SD = lm.hidden_states(both_2S, rows_S[None, half:], None, None, prefix)
    if _differ(lm.logits(batch_2SD[0]), full_SV[half:]) or _differ(lm.logits(batch_2SD[1]), second):
        yield "two texts in one batch are not to it what each is alone"


def _differ(logits_SV: torch.Tensor, expected_SV: torch.Tensor) -> bool:
    largest = (expected_SV.float() - expected_SV.float().mean()).abs().max()
    worst_S = (logits_SV.float() - expected_SV.float()).abs().amax(dim=-1)
    # Written so that a NaN differs.
    if expected_SV.dtype == torch.float32:
        return not bool(worst_S.max() <= _TOLERANCE * largest)
    # Rounding may send a few rows to another expert where experts are chosen: half of the rows must agree.
    return not bool(worst_S.median() <= _COARSE_TOLERANCE * largest)
