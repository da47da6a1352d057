"""Hugging Face causal LMs behind the `CausalLM` interface.

The model's own code runs; its attention is replaced by ours (`attention.py`), to which each pass gives what
its rows see and the keys and values of a prefix, instead of the library's masks and caches. A model must show
on a few tokens, when it is loaded, that it obeys (`check_model`), or it is refused.

A sliding window counts position IDs. So a token left out keeps its place in the windows of others, as if a
stock model were given a mask that hides it.

Shapes: B batch, S rows, P rows of a prefix, K = S or P + S, T query rows, D width, H heads, G key-value
heads, E head width, V vocabulary, N any number of rows.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.functional import pad
from transformers.masking_utils import eager_mask

from pipeline.cli import InputError, cause_of
from pipeline.models.attention import attend, laid_out, written_out
from pipeline.models.interface import (
    CausalLM,
    KeysAndValues,
    Prefix,
    Watch,
    causal_visibility,
    refuse_other_weights,
    rows_of,
    visibility_of_all,
)

OURS = "attention_with_shared_prefix"
"""Name of our attention among the library's."""


@dataclass
class _Pass:
    """What our attention must know of the forward pass that is running."""

    config: Any
    prefix: Prefix | None
    visible_B1SK: torch.Tensor | None
    near_B1SK: torch.Tensor | None
    """Visibility in layers whose windows cut; None if there are none."""
    watch: Watch | None
    read: dict[int, KeysAndValues] | None
    """Layer -> keys and values of the rows given, if they are to be kept."""


_RUNNING: ContextVar[_Pass | None] = ContextVar("the pass that our attention runs in", default=None)
"""The library hands it to no layer of its own."""


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
    running = _RUNNING.get()
    past = None
    watch = None
    visible = attention_mask  # of a pass that is the user's own
    if running is not None:
        layer: Any = module.layer_idx
        if running.read is not None:
            running.read[layer] = (key, value)
        past = None if running.prefix is None else running.prefix.keys_and_values[layer]
        watch = running.watch
        layer_types = getattr(running.config, "layer_types", None)
        slides = layer_types is None or layer_types[layer] == "sliding_attention"
        visible = running.near_B1SK if slides and running.near_B1SK is not None else running.visible_B1SK
        visible = None if visible is None else visible.to(query.device)
    if watch is None and softcap is None and s_aux is None:
        attended = attend(query, key, value, past, visible, scaling)
    else:
        key, value, visible = laid_out(query, key, value, past, visible)
        scaled_query, weights = written_out(query, key, visible, scaling, softcap, s_aux)
        if watch is not None:
            watch(scaled_query, key.float(), weights)
        attended = weights.to(value.dtype) @ value
    return attended.transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register(OURS, _attend)
transformers.AttentionMaskInterface.register(OURS, eager_mask)


class HuggingFaceCausalLM(CausalLM):
    """A Hugging Face causal LM; `load_hugging_face` makes sure that it is of a kind that can be measured.

    Position IDs will be below `num_positions`, if that is given: a window as wide cuts nothing.
    """

    _model: transformers.PreTrainedModel

    def __init__(self, model: transformers.PreTrainedModel, num_positions: int | None = None) -> None:
        super().__init__(model)
        self._config = model.config.get_text_config()
        width = sliding_window(self._config)
        self.window = width if width and (num_positions is None or num_positions > width) else None
        """How many position IDs a row sees in layers that slide, its own included; None: nothing is cut."""
        has_sinks = any(name.endswith(".sinks") for name, _ in model.named_parameters())  # gpt-oss
        self._is_written_out = has_sinks or bool(getattr(self._config, "attn_logit_softcapping", None))
        model.set_attn_implementation(OURS)

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
        width = self._config.hidden_size
        hidden_width = getattr(self._config, "intermediate_size", None) or 4 * width
        is_copied = self._is_written_out or self.window is not None
        num_seen = num_rows + (num_prefix_rows if is_copied else 0)
        values = num_rows * (3 * width + max(10 * width, 3 * hidden_width)) + 4 * width * num_seen
        masks = num_rows * num_seen * (2 if is_copied else 0)
        # Attention with capped scores or sinks is written out, which holds them twice in float32.
        scores = self._config.num_attention_heads * num_rows * num_seen if self._is_written_out else 0
        return self.dtype.itemsize * values + masks + 8 * scores

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """Scaled if the family's embedding does that."""
        return self._model.get_input_embeddings()(token_ids_1S)

    def _run(
        self,
        tokens: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None,
        prefix: Prefix | None = None,
        *,
        keeps_rows: bool = False,
        watch: Watch | None = None,
    ) -> tuple[torch.Tensor, Prefix | None]:
        """All rows are computed, in every layer."""
        needs_all = self._is_written_out or self.window is not None or watch is not None
        if needs_all and visible_BSK is not None and visible_BSK.shape[1] < tokens.shape[1]:
            visible_BSK = visibility_of_all(visible_BSK, tokens.shape[1])
        visible_B1SK = None if visible_BSK is None else visible_BSK[:, None]
        near_B1SK = self._near(tokens.shape[1], position_ids_BS, visible_BSK, prefix)
        read: dict[int, KeysAndValues] | None = {} if keeps_rows else None
        running = _Pass(self._config, prefix, visible_B1SK, near_B1SK, watch, read)
        before = _RUNNING.set(running)
        try:
            hidden_BSD = self._model.base_model(
                **{"inputs_embeds" if tokens.is_floating_point() else "input_ids": tokens},
                position_ids=position_ids_BS.expand(tokens.shape[:2]),
                # Without a mask the library takes a gap in the position IDs for the border of two packed
                # sequences; one with four dimensions it leaves as it is.
                attention_mask=torch.zeros(1, 1, 1, 1, dtype=self.dtype, device=self.device),
                use_cache=False,
                return_dict=True,
            ).last_hidden_state
        finally:
            _RUNNING.reset(before)
        hidden_BTD = rows_of(hidden_BSD.to(self.device), query_rows_BT)
        if read is None:
            return hidden_BTD, None
        layers = tuple(read[layer] for layer in range(len(read)))
        return hidden_BTD, Prefix(layers, position_ids_BS[:, None, :, None])

    def _near(
        self,
        num_rows: int,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        prefix: Prefix | None,
    ) -> torch.Tensor | None:
        """Visibility within windows, [B or 1, 1, S, P + S]; None if they cut nothing."""
        if self.window is None:
            return None
        if visible_BSK is None:
            visible_BSK = causal_visibility(num_rows, self.device)
        ids_BK = position_ids_BS
        if prefix is not None:
            past_BP = prefix.position_ids_B1P1[:, 0, :, 0]
            batch_size = max(len(past_BP), len(position_ids_BS))
            ids_BK = torch.cat([ids.expand(batch_size, -1) for ids in (past_BP, position_ids_BS)], dim=1)
        is_number = visible_BSK.is_floating_point()
        visible_BSK = pad(visible_BSK, (ids_BK.shape[1] - visible_BSK.shape[2], 0), value=not is_number)
        is_beyond_BSK = ids_BK[:, None] + self.window <= position_ids_BS[..., None]
        hidden = torch.finfo(visible_BSK.dtype).min if is_number else False
        return torch.where(is_beyond_BSK, hidden, visible_BSK)[:, None]

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
    def left_alone(self, width: int) -> Iterator[None]:
        """The library's own attention for a while, as plain tensor operations; windows that cut as given."""
        window = self.window
        if window is not None:
            self._config.sliding_window = width
        self._model.set_attn_implementation("eager")
        try:
            yield
        finally:
            self._model.set_attn_implementation(OURS)
            if window is not None:
                self._config.sliding_window = window


def load_hugging_face(
    folder: Path,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    device_map: str | None = None,
    trust_remote_code: bool = False,
    num_positions: int,
    gguf: str | None = None,
) -> HuggingFaceCausalLM:
    """Load a causal LM from a folder as `save_pretrained` and the hub's snapshots have it; tensors only.

    `gguf` is the file of the folder that holds the model, if it is one of GGUF; its weights are unpacked.
    It goes to `device`, or where a `device_map` of accelerate's says. Position IDs will be below
    `num_positions`. InputError if it is no causal LM, incomplete, has no place for so many positions, or
    does not obey (`check_model`). All its weights are the folder's, and no other.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
            # Told below, while the library would only point to its log.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **({"gguf_file": gguf} if gguf else {}),
        )
    except Exception as error:  # the library's, safetensors', pickle's, accelerate's or remote code's own
        raise InputError(f"{folder} cannot be loaded as a causal LM: {_reason(error)}") from error
    computed = {name for name, _ in model.named_buffers()}
    computed |= {name for name in loading["unexpected_keys"] if _COMPUTED.search(name)}
    left_over = loading["unexpected_keys"] - computed
    if gguf is not None:
        left_over |= _left_out_of_gguf(folder / gguf, model)
    missing = {*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])}
    refuse_other_weights(folder, f"a {type(model).__name__}", left_over, missing)
    if device_map is None:
        model = model.to(device)
    return as_causal_lm(model, str(folder), num_positions)


def as_causal_lm(model: transformers.PreTrainedModel, name: str, num_positions: int) -> HuggingFaceCausalLM:
    """A model of the library, as it lies in memory, to be measured; `name` is what messages call it.

    Its attention becomes ours. InputError as of `load_hugging_face`.
    """
    takes_ids = "position_ids" in inspect.signature(model.base_model.forward).parameters
    if not takes_ids or not model._can_set_attn_implementation():
        raise InputError(
            f"{type(model).__name__} in {name} cannot be measured: its code takes no position IDs, or no"
            " attention but its own"
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
            folder, trust_remote_code=trust_remote_code, **({"gguf_file": gguf} if gguf else {})
        )
    except Exception as error:  # by version and fault OSError, ValueError, KeyError, or what its code raises
        raise InputError(f"{folder / (gguf or 'config.json')} cannot be used: {_reason(error)}") from error


# Tables and masks that older versions of the library saved with the weights, and computes anew.
_COMPUTED = re.compile(r"(^|\.)(inv_freq|cos_cached|sin_cached|position_ids|masked_bias)$")


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

    tensors = GGUFReader(path).tensors
    saved = model.state_dict().keys()
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

    A family that was never tested may treat future, visibility, position IDs or prefix in its own way, and
    the numbers would be wrong without a sign of it. Windows are narrowed meanwhile: these few tokens must
    reach beyond them.
    """
    generator = torch.Generator().manual_seed(0)
    size = (1, min(_NUM_TOKENS, num_positions))
    token_ids_1S = torch.randint(lm.vocabulary_size, size, generator=generator).to(lm.device)
    window = lm.window
    try:
        lm.window = None if window is None else max(1, size[1] // 3)
        broken = next(_broken_promises(lm, token_ids_1S), None)
    except Exception as error:  # code of any family, met with arguments that it may not have been written for
        raise InputError(
            f"{name} fails when it is given position IDs, visibility and a prefix"
            f" ({type(error).__name__}: {_reason(error)}), so it cannot be measured"
        ) from error
    finally:
        lm.window = window
    if broken:
        raise InputError(f"{name} cannot be measured: {broken}")


@torch.inference_mode()
def _broken_promises(lm: HuggingFaceCausalLM, token_ids_1S: torch.Tensor) -> Iterator[str]:
    def logits(rows: torch.Tensor, visible: torch.Tensor | None = None, *past: Prefix) -> torch.Tensor:
        hidden_1SD = lm.hidden_states(token_ids_1S[:, rows], rows[None], visible, None, *past)
        return lm.logits(hidden_1SD[0])

    def stock_logits(token_ids_1S: torch.Tensor) -> torch.Tensor:
        with lm.left_alone(lm.window or 0):
            return lm._model(input_ids=token_ids_1S, use_cache=False).logits[0].to(lm.device)

    num_rows = token_ids_1S.shape[1]
    rows_S = torch.arange(num_rows, device=lm.device)
    half = num_rows // 2
    stock_SV = stock_logits(token_ids_1S)
    if not stock_SV.isfinite().all():
        yield "its logits are not finite numbers"
    if _differ(stock_logits(token_ids_1S[:, :-1]), stock_SV[:-1]):
        yield "its prediction for a token changes with the tokens after it, so it is not causal (an encoder?)"
    full_SV = logits(rows_S)
    if _differ(full_SV, stock_SV):
        yield "its logits are not its output embedding of its last hidden states, scaled in a known way"
    kept_N = torch.cat((rows_S[: num_rows // 4], rows_S[half:]))
    visible_1SS = causal_visibility(num_rows, lm.device) & torch.isin(rows_S, kept_N)
    if _differ(logits(kept_N), logits(rows_S, visible_1SS)[kept_N]):
        yield "tokens left out at kept position IDs are not the same to it as tokens hidden by a mask"
    prefix = lm.read(token_ids_1S, rows_S[None], None, None)[1].first(half)
    if _differ(logits(rows_S[half:], None, prefix), full_SV[half:]):
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
