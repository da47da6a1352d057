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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.functional import pad
from transformers.masking_utils import eager_mask

from pipeline.cli import InputError, cause_of
from pipeline.models.attention import attend
from pipeline.models.interface import (
    CausalLM,
    KeysAndValues,
    Prefix,
    Watch,
    causal_visibility,
    rows_of,
)

OURS = "attention_with_shared_prefix"
"""Name of our attention among the library's."""


@dataclass
class _Pass:
    """What our attention must know of the forward pass that is running."""

    prefix: Prefix | None
    visible_of_layers: Sequence[torch.Tensor | None]
    """[B or 1, 1, S, K]."""
    watch: Watch | None
    read: list[KeysAndValues] | None
    """Keys and values of the rows given, layer by layer, if they are to be kept."""


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    running: _Pass | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in one layer, [B, S, H, E], in place of the library's; the mask that it made is left out."""
    past = None
    watch = None
    visible = attention_mask  # of a pass that is the user's own
    if running is not None:
        layer: Any = module.layer_idx
        if running.read is not None:
            running.read.append((key, value))
        past = None if running.prefix is None else running.prefix.keys_and_values[layer]
        watch = running.watch
        visible = running.visible_of_layers[layer]
        visible = None if visible is None else visible.to(query.device)
    attended = attend(query, key, value, past, visible, scaling, softcap=softcap, sink_H=s_aux, watch=watch)
    return attended.transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register(OURS, _attend)
# For passes that are the user's own: a mask of numbers, added to the scores, which `attend` takes.
transformers.AttentionMaskInterface.register(OURS, eager_mask)


class HuggingFaceCausalLM(CausalLM):
    """A Hugging Face causal LM; `load_hugging_face` makes sure that it is of a kind that can be measured.

    Position IDs will be below `num_positions`, if that is given: a window as wide cuts nothing.
    """

    _model: transformers.PreTrainedModel

    def __init__(self, model: transformers.PreTrainedModel, num_positions: int | None = None) -> None:
        super().__init__(model)
        self._config = model.config.get_text_config()
        layer_types = getattr(self._config, "layer_types", None)
        # Without layer_types: Mistral gives a width alone, Qwen2 one that use_sliding_window may switch off.
        slides = getattr(self._config, "use_sliding_window", True)
        self._slides = [slides] * self._config.num_hidden_layers
        if layer_types is not None:
            self._slides = [kind == "sliding_attention" for kind in layer_types]
        width = getattr(self._config, "sliding_window", None) if any(self._slides) else None
        self.window = width if width and (num_positions is None or num_positions > width) else None
        """How many position IDs a row sees in layers that slide, its own included; None: nothing is cut."""
        model.set_attn_implementation(OURS)

    @property
    def vocabulary_size(self) -> int:
        """Many families pad it beyond their tokenizer's."""
        return self._model.get_output_embeddings().weight.shape[0]

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
        """Compute all rows, in every layer."""
        visible_B1SK = None if visible_BSK is None else visible_BSK[:, None]
        # Two visibilities for all layers, made once: with the window, and without.
        near_B1SK = visible_B1SK
        if self.window is not None:
            near_B1SK = self._near(self.window, tokens.shape[1], position_ids_BS, visible_BSK, prefix)
        visible_of_layers = [near_B1SK if slides else visible_B1SK for slides in self._slides]
        running = _Pass(prefix, visible_of_layers, watch, [] if keeps_rows else None)
        # The base model stops before the vocabulary projection, which runs later at query rows only.
        hidden_BSD = self._model.base_model(
            **{"inputs_embeds" if tokens.is_floating_point() else "input_ids": tokens},
            position_ids=position_ids_BS.expand(tokens.shape[:2]),
            # Without a mask the library takes a gap in the position IDs for the border of two packed
            # sequences; one with four dimensions it leaves as it is.
            attention_mask=torch.zeros(1, 1, 1, 1, dtype=self.dtype, device=self.device),
            use_cache=False,
            return_dict=True,
            running=running,
        ).last_hidden_state
        kept = None
        if running.read is not None:
            kept = Prefix(tuple(running.read), position_ids_BS[:, None, :, None])
        return rows_of(hidden_BSD.to(self.device), query_rows_BT), kept

    def _near(
        self,
        window: int,
        num_rows: int,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        prefix: Prefix | None,
    ) -> torch.Tensor:
        """Visibility within windows, [B or 1, 1, S, P + S]."""
        if visible_BSK is None:
            visible_BSK = causal_visibility(num_rows, self.device)
        ids_BK = position_ids_BS
        if prefix is not None:
            past_BP = prefix.position_ids_B1P1[:, 0, :, 0]
            batch_size = max(len(past_BP), len(position_ids_BS))
            ids_BK = torch.cat([ids.expand(batch_size, -1) for ids in (past_BP, position_ids_BS)], dim=1)
        is_number = visible_BSK.is_floating_point()
        # Visibility of the rows given says nothing of the prefix, all of which may be seen: True, or 0 added.
        visible_BSK = pad(visible_BSK, (ids_BK.shape[1] - visible_BSK.shape[2], 0), value=not is_number)
        # With a window of 2, the row at ID 5 sees IDs 4 and 5: 3 + 2 <= 5 is beyond.
        is_beyond_BSK = ids_BK[:, None] + window <= position_ids_BS[..., None]
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


def load_hugging_face(
    folder: Path,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    device_map: str | None = None,
    trust_remote_code: bool = False,
    num_positions: int,
) -> HuggingFaceCausalLM:
    """Load a causal LM from a folder as `save_pretrained` and the hub's snapshots have it; tensors only.

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
        )
    except Exception as error:  # the library's, safetensors', pickle's, accelerate's or remote code's own
        raise InputError(f"{folder} cannot be loaded as a causal LM: {cause_of(error)}") from error
    # Older versions of the library saved with the weights what it computes anew.
    computed = {name for name, _ in model.named_buffers()}
    left_over = {
        name for name in loading["unexpected_keys"] if name not in computed and not _COMPUTED.search(name)
    }
    missing = {*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])}
    for what, names in (("lacks", sorted(missing)), ("has no place in it for", sorted(left_over))):
        if names:  # random numbers would be used for what it lacks
            raise InputError(
                f"{folder} is not the weights of a {type(model).__name__}: it {what} {len(names)}, such as"
                f" {names[0]}; put back the configuration that was saved with them, or save the model anew"
            )
    if device_map is None:
        model = model.to(device)
    return as_causal_lm(model, str(folder), num_positions)


def as_causal_lm(model: transformers.PreTrainedModel, name: str, num_positions: int) -> HuggingFaceCausalLM:
    """A model of the library, as it lies in memory, to be measured; `name` is what messages call it.

    Its attention becomes ours. InputError as of `load_hugging_face`.
    """
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


def positions_of(model: transformers.PreTrainedModel | Path, trust_remote_code: bool = False) -> int | None:
    """How many positions a model, or one in a folder, was made for by its configuration; None: not said."""
    config: Any
    if isinstance(model, Path):
        try:
            config = transformers.AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
        except Exception as error:  # by version and fault OSError, ValueError, KeyError, or its own code's
            raise InputError(f"{model / 'config.json'} cannot be used: {cause_of(error)}") from error
    else:
        config = model.config
    config = config.get_text_config()
    limits = getattr(config, "max_position_embeddings", None), position_limit(config, True)
    return min((limit for limit in limits if limit), default=None)


_COMPUTED = re.compile(r"(^|\.)(inv_freq|cos_cached|sin_cached|position_ids|masked_bias)$")


def position_limit(config: Any, has_rotary_embedding: bool) -> int | None:
    """The number that a model's position IDs must be below, by the `config` of its text model.

    Below it no chunk of attention ends, no table of positions runs out, and no RoPE changes its frequencies
    with the length of the input: a short context would be given others than the long one. Windows that slide
    are no limit. None: any ID may be used.
    """
    longest: Any = getattr(config, "max_position_embeddings", None)
    limits: list[int | None] = [None if has_rotary_embedding else longest]
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        limits.append(config.attention_chunk_size)
    rope = getattr(config, "rope_parameters", None) or {}
    # One set of parameters, or one for each kind of layer (Gemma 3).
    for parameters in (rope, *rope.values()):
        kind = parameters.get("rope_type") if isinstance(parameters, Mapping) else None
        if kind in ("longrope", "dynamic"):
            # Up to the original length the frequencies stay the same.
            limits.append(parameters.get("original_max_position_embeddings") or longest)
        if kind == "dynamic":  # the library goes by the configuration's number alone
            limits.append(longest)
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
        if window is not None:
            # In both places: the stock pass reads the configuration, ours `window`.
            lm.window = lm._config.sliding_window = max(1, size[1] // 3)
        broken = _broken_promise(lm, token_ids_1S)
    except Exception as error:  # code of any family, met with arguments that it may not have been written for
        raise InputError(
            f"{name} fails when it is given position IDs, visibility and a prefix"
            f" ({type(error).__name__}: {cause_of(error)}), so it cannot be measured"
        ) from error
    finally:
        if window is not None:
            lm.window = lm._config.sliding_window = window
    if broken:
        raise InputError(f"{name} cannot be measured: {broken}")


@torch.inference_mode()
def _broken_promise(lm: HuggingFaceCausalLM, token_ids_1S: torch.Tensor) -> str | None:
    """What the model does not do, in a clause."""

    def logits(token_ids_BS: torch.Tensor, rows: torch.Tensor, *seen: Any) -> torch.Tensor:
        return lm.logits(lm.hidden_states(token_ids_BS, rows[None], *seen).flatten(0, 1))

    num_rows = token_ids_1S.shape[1]
    rows_S = torch.arange(num_rows, device=lm.device)
    half = num_rows // 2
    lm._model.set_attn_implementation("eager")  # the library's own, as plain tensor operations
    # The same text with and without its last token: causal rows before it cannot tell the two apart.
    stock_SV, of_fewer_SV = (
        lm._model(input_ids=token_ids_1S[:, :stop], use_cache=False).logits[0].to(lm.device)
        for stop in (num_rows, num_rows - 1)
    )
    lm._model.set_attn_implementation(OURS)
    if not stock_SV.isfinite().all():
        return "its logits are not finite numbers"
    if _differ(of_fewer_SV, stock_SV[:-1]):
        return (
            "its prediction for a token changes with the tokens after it, so it is not causal (an encoder?)"
        )
    full_SV = logits(token_ids_1S, rows_S, None, None)
    if _differ(full_SV, stock_SV):
        return "its logits are not its output embedding of its last hidden states, scaled in a known way"
    # Of 24 rows, 0 to 5 and 12 to 23: a gap, as leaving tokens out makes it.
    kept_N = torch.cat((rows_S[: num_rows // 4], rows_S[half:]))
    visible_1SS = causal_visibility(num_rows, lm.device) & torch.isin(rows_S, kept_N)
    hidden_SV = logits(token_ids_1S, rows_S, visible_1SS, None)
    if _differ(logits(token_ids_1S[:, kept_N], kept_N, None, None), hidden_SV[kept_N]):
        return "tokens left out at kept position IDs are not the same to it as tokens hidden by a mask"
    # Cut from all rows: keys and values of a causal model do not depend on what comes after them.
    prefix = lm.read(token_ids_1S, rows_S[None], None, None)[1].first(half)
    behind = rows_S[half:], None, None, prefix
    # Two different texts, as equal ones would hide rows that mix across the batch.
    both_2S = torch.cat((token_ids_1S, token_ids_1S.flip(1)))[:, half:]
    first_SV = logits(both_2S[:1], *behind)
    if _differ(first_SV, full_SV[half:]):
        return "it does not read on from a shared prefix as from the tokens themselves"
    if _differ(logits(both_2S, *behind), torch.cat((first_SV, logits(both_2S[1:], *behind)))):
        return "two texts in one batch are not to it what each is alone"
    return None


def _differ(logits_SV: torch.Tensor, expected_SV: torch.Tensor) -> bool:
    largest = (expected_SV.float() - expected_SV.float().mean()).abs().max()
    worst_S = (logits_SV.float() - expected_SV.float()).abs().amax(dim=-1)
    # Written so that a NaN differs.
    if expected_SV.dtype == torch.float32:
        return not bool(worst_S.max() <= _TOLERANCE * largest)
    # Rounding may send a few rows to another expert where experts are chosen: half of the rows must agree.
    return not bool(worst_S.median() <= _COARSE_TOLERANCE * largest)
