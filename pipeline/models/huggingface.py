"""Reading a Hugging Face model from its folder, and saying in a sentence why that cannot be done.

How far a Hugging Face model's position IDs may go before its predictions would mean something else.

One number a model, so that one rule covers all cases: with IDs below it, no two tokens are far enough apart
for a sliding window to cut, no table of positions runs out, and no RoPE changes its frequencies with the
length of the input.

Whether a model does what `CausalLM` promises, tried on a few tokens when it is loaded.

A family that this project has never seen may look away from the future, the mask, the position IDs or the
prefix in its own way, and the numbers would be wrong without a sign of it. Shapes: S rows, V vocabulary.

What looking inside a Hugging Face model takes, beyond running it (`InspectableLM`).

Under the name "eager" the library writes each family's attention out in plain tensor operations. Only there
are the weights to be had, and only there does every family add our mask to its scores, soft-capped or not,
so that a derivative by the mask is one by the gates.

Shapes: B batch, S rows, T query rows, H heads.

A prefix shown to a Hugging Face model: beside the rows of a pass, or copied in front of each sequence's.

A family's attention is written for keys and values of each sequence's own. Where the library lets attention
be replaced, ours looks at the shared prefix itself (`prefix_attention.py`), and the model's code is shown the
pass's own rows only. Elsewhere the prefix is copied in front of them.

Shapes: B batch, S rows, H heads, E head width.

Hugging Face causal LMs behind the `CausalLM` interface, and the door to the `transformers` library.

The model's own code runs; what is ours is what it is told: position IDs, a mask, the keys and values of a
shared prefix. Families differ in more ways than a reader can check, so a model that is loaded must show on a
few tokens that it obeys (`obedience.py`), or it is refused.

Shapes: B batch, S rows, P rows of a prefix, K = S or P + S, T query rows, D width, G key-value
heads, E head width, V vocabulary, N any number of rows.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from pipeline.cli import InputError
from pipeline.models.attention import added_to_scores, attend
from pipeline.models.devices import refuse_model_beyond_memory
from pipeline.models.interface import (
    CausalLM,
    KeysAndValues,
    NotInspectableError,
    Prefix,
    causal_visibility,
    rows_of,
)


def hugging_face_config(folder: Path, trust_remote_code: bool) -> Any:
    """The folder's configuration.

    Raises:
        InputError: it cannot be used.
    """
    try:
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (
        Exception
    ) as error:  # by version and fault OSError, ValueError, KeyError, or what remote code raises
        raise InputError(f"{folder}/config.json cannot be used: {_reason(error)}") from error


def stock_hugging_face(
    folder: Path, dtype: torch.dtype, device_map: str | None, trust_remote_code: bool
) -> transformers.PreTrainedModel:
    """The causal LM in the folder, as the library has it.

    Raises:
        InputError: it is none, lacks weights, or takes no position IDs.
    """
    try:
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    except Exception as error:  # the library's, safetensors', pickle's, accelerate's or remote code's own
        raise InputError(f"{folder} cannot be loaded as a causal LM: {_reason(error)}") from error
    if missing := sorted(loading["missing_keys"]):
        # The library would go on with random numbers in their place.
        raise InputError(
            f"{folder} lacks {len(missing)} of the weights of a {type(model).__name__}, such as {missing[0]};"
            " it was saved without them, or is not a causal LM"
        )
    if "position_ids" not in _trunk_arguments(model):
        raise InputError(
            f"{type(model).__name__} in {folder} takes no position IDs, so tokens cannot keep theirs when"
            " others are left out"
        )
    return model


def _reason(error: Exception) -> str:
    """The first line of the library's message, which may be pages long."""
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if "trust_remote_code" in str(error):
        reason = "it needs the Python files that come with it; where you trust them, --trust-remote-code"
    return reason[:300]


def _trunk_arguments(model: transformers.PreTrainedModel) -> set[str]:
    forward = inspect.signature(model.base_model.forward)
    return set(forward.parameters)


# What a layer may be told to do; any other word of `layer_types` (linear attention, state spaces, …) is a
# layer into which edges cannot be cut.
_LAYER_LIMITS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
_RESCALED_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True)
class PositionLimit:
    """Position IDs must be below `num_positions`."""

    num_positions: int
    reason: str

    def refuse(self, num_positions: int, name: str) -> None:
        """Refuse to use `num_positions` position IDs where that is more than there are.

        Raises:
            InputError: it is.
        """
        if num_positions > self.num_positions:
            raise InputError(
                f"{name} {self.reason}, so it can be measured up to --long-context-length"
                f" {self.num_positions}, not {num_positions}"
            )


def position_limit(config: Any, has_rotary_embedding: bool) -> PositionLimit | None:
    """The least limit that the configuration of a model states; None where any position ID will do.

    Args:
        config: a Hugging Face configuration of a text model.
        has_rotary_embedding: whether positions are rotations, and not a table of `max_position_embeddings`.

    Raises:
        InputError: a kind of layer that this project knows nothing about.
    """
    limits = [*_window_limits(config), *_rope_limits(config)]
    table_size = getattr(config, "max_position_embeddings", None)
    if not has_rotary_embedding and table_size:
        limits.append(PositionLimit(table_size, f"has a table of {table_size} positions"))
    return min(limits, key=lambda limit: limit.num_positions, default=None)


def _window_limits(config: Any) -> Iterator[PositionLimit]:
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        # Without a word for each layer, the family slides in all of them or in none.
        names = ["sliding_window"] if getattr(config, "use_sliding_window", True) else []
    else:
        unknown = set(layer_types) - _LAYER_LIMITS.keys() - {"full_attention"}
        if unknown:
            raise InputError(
                f"{config.model_type} has layers of the kind {', '.join(sorted(unknown))}, which cannot be"
                " told whom to look at; only attention layers can"
            )
        names = [_LAYER_LIMITS[kind] for kind in set(layer_types) & _LAYER_LIMITS.keys()]
    if "local" in getattr(config, "attention_layers", ()):  # GPT-Neo
        names.append("window_size")
    for name in names:
        if width := getattr(config, name, None):
            yield PositionLimit(width, f"has layers that look at only the last {width} tokens ({name})")


def _rope_limits(config: Any) -> Iterator[PositionLimit]:
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):
        if not isinstance(parameters, Mapping) or parameters.get("rope_type") not in _RESCALED_ROPE:
            continue
        longest = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
        yield PositionLimit(
            longest,
            f"has RoPE of the type {parameters['rope_type']}, whose frequencies change with the length of the"
            f" input beyond {longest} tokens",
        )


_NUM_TOKENS = 24
# Of the largest logit's distance from the mean. Rounding stays well below; reading a token from another place
# does not.
_TOLERANCE = 1e-3
_COARSE_TOLERANCE = 5e-2


def refuse_disobedient(
    lm: CausalLM, stock_logits: Callable[[torch.Tensor], torch.Tensor], name: str, num_positions: int
) -> None:
    """Compare the model as told through `CausalLM` with the model left alone.

    Args:
        stock_logits: int64 [1, S] -> logits [S, V] of the model left alone.
        name: what messages call the model.
        num_positions: position IDs that may be used.

    Raises:
        InputError: they differ; says in what.
    """
    num_tokens = min(_NUM_TOKENS, num_positions)
    generator = torch.Generator().manual_seed(0)
    token_ids_1S = torch.randint(lm.vocabulary_size, (1, num_tokens), generator=generator).to(lm.device)
    try:
        broken = next((promise for promise in _broken_promises(lm, stock_logits, token_ids_1S)), None)
    except Exception as error:  # code of any family, met with arguments that it may not have been written for
        reason = (str(error).splitlines() or [""])[0][:300]
        raise InputError(
            f"{name} fails when it is told position IDs, a mask and a prefix"
            f" ({type(error).__name__}: {reason}), so it cannot be measured"
        ) from error
    if broken:
        raise InputError(f"{name} cannot be measured: {broken}")


def _broken_promises(
    lm: CausalLM, stock_logits: Callable[[torch.Tensor], torch.Tensor], token_ids_1S: torch.Tensor
) -> Iterator[str]:
    stock_SV = stock_logits(token_ids_1S)
    if not stock_SV.isfinite().all():
        yield "its logits are not finite numbers"
    if _differ(stock_logits(token_ids_1S[:, :-1]), stock_SV[:-1]):
        yield "its prediction for a token changes with the tokens after it, so it is not causal (an encoder?)"
    num_rows, device = token_ids_1S.shape[1], token_ids_1S.device
    rows_S = torch.arange(num_rows, device=device)
    full_SV = _logits(lm, token_ids_1S, rows_S, None)
    if _differ(full_SV, stock_SV):
        yield "its logits are not its output embedding of its last hidden states, scaled in a known way"
    is_kept_S = (rows_S < num_rows // 4) | (rows_S >= num_rows // 2)
    visible_SS = causal_visibility(num_rows, device)[0] & is_kept_S
    hidden_SV = _logits(lm, token_ids_1S, rows_S, visible_SS[None])
    left_out_SV = _logits(lm, token_ids_1S[:, is_kept_S], rows_S[is_kept_S], None)
    if _differ(left_out_SV, hidden_SV[is_kept_S]):
        yield "tokens left out at kept position IDs are not the same to it as tokens hidden by a mask"
    half = num_rows // 2
    prefix = lm.read(token_ids_1S, rows_S[None], None, None)[1].first(half)
    if _differ(_logits(lm, token_ids_1S[:, half:], rows_S[half:], None, prefix), full_SV[half:]):
        yield "it does not read on from a shared prefix as from the tokens themselves"


def _logits(
    lm: CausalLM,
    token_ids_1S: torch.Tensor,
    position_ids_S: torch.Tensor,
    visible_1SS: torch.Tensor | None,
    prefix: Prefix | None = None,
) -> torch.Tensor:
    return lm.logits(lm.hidden_states(token_ids_1S, position_ids_S[None], visible_1SS, None, prefix)[0])


def _differ(logits_SV: torch.Tensor, expected_SV: torch.Tensor) -> bool:
    largest = (expected_SV.float() - expected_SV.float().mean()).abs().max()
    worst_S = (logits_SV.float() - expected_SV.float()).abs().amax(dim=-1)
    # Written so that a NaN differs.
    if expected_SV.dtype == torch.float32:
        return not bool(worst_S.max() <= _TOLERANCE * largest)
    # Rounding may send a few rows to another expert where experts are chosen: half of the rows must agree.
    return not bool(worst_S.median() <= _COARSE_TOLERANCE * largest)


_FAR_FROM_ONE = 0.01
"""No rounding does this to a sum of weights; a share that is given to no token (attention sinks) does."""


@contextmanager
def eager_attention(model: transformers.PreTrainedModel) -> Iterator[None]:
    """Attention as plain tensor operations for a while, then as it was before.

    Raises:
        NotInspectableError: the family has its attention in one form only.
    """
    before = model.config._attn_implementation
    if before != "eager" and not model._can_set_attn_implementation():
        raise _not_inspectable(model, "its attention is written in one form, which shows no weights")
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def shown_attention(
    model: transformers.PreTrainedModel,
    weights_1HSS: Sequence[torch.Tensor | None] | None,
    rows_T: torch.Tensor,
) -> Iterator[torch.Tensor]:
    """The attention of some rows, layer by layer: float32 [H, T, S].

    Args:
        weights_1HSS: of each layer, as the library returns them.

    Raises:
        NotInspectableError: a layer shows none, or gives some of its attention to nothing, so that the mass
            of the tokens is not to be compared between layers.
    """
    for layer_1HSS in _all_layers(model, weights_1HSS):
        weights_HTS = layer_1HSS[0, :, rows_T.to(layer_1HSS.device)].float()
        if not bool(((weights_HTS.sum(-1) - 1).abs() < _FAR_FROM_ONE).all()):
            raise _not_inspectable(model, "the attention of a token to those before it does not sum to 1")
        yield weights_HTS.to(rows_T.device)


def gate_derivatives(
    model: transformers.PreTrainedModel, losses_T: torch.Tensor, log_gates_S: torch.Tensor
) -> torch.Tensor:
    """The derivative of each loss by each log-gate: float32 [T, S], one backward pass a loss.

    Raises:
        NotInspectableError: the losses do not depend on the gates: the family looks at where its mask is
            low, and not at how low.
    """
    if not losses_T.requires_grad:
        raise _no_derivative(model)
    return torch.stack(
        [torch.autograd.grad(loss, log_gates_S, retain_graph=True)[0] for loss in losses_T]
    ).float()


def _all_layers(
    model: transformers.PreTrainedModel, weights: Sequence[torch.Tensor | None] | None
) -> list[torch.Tensor]:
    num_layers = model.config.get_text_config().num_hidden_layers
    shown = [layer for layer in weights or () if layer is not None]
    if len(shown) != num_layers:
        raise _not_inspectable(model, f"{len(shown)} of its {num_layers} layers show their attention")
    return shown


def _no_derivative(model: transformers.PreTrainedModel) -> NotInspectableError:
    return _not_inspectable(model, "its losses have no derivative by what is added to its attention scores")


def _not_inspectable(model: transformers.PreTrainedModel, reason: str) -> NotInspectableError:
    return NotInspectableError(f"{type(model).__name__} cannot be looked into: {reason}")


SHARED_PREFIX = "sdpa_with_shared_prefix"
"""What our attention is called among the library's."""


class PassCache(transformers.DynamicCache):
    """The cache of one forward pass: shows every sequence the same prefix, and keeps the new rows apart.

    The library's own caches grow by what they are shown; a prefix shared by many passes must not.
    """

    def __init__(
        self,
        prefix: Prefix | None,
        visible_BSS: torch.Tensor | None = None,
        goes_apart: bool = False,
    ) -> None:
        """Of a pass whose rows see a prefix.

        Args:
            visible_BSS: which row of the pass sees which; None: those up to itself.
            goes_apart: the prefix is left to our attention, which looks at it without a copy for every
                sequence, and the model's own code never sees it; all rows see all of it.
        """
        super().__init__()
        self._prefix, self.goes_apart = prefix, goes_apart
        self.visible_B1SS = None if visible_BSS is None else visible_BSS[:, None]
        self._read: dict[int, KeysAndValues] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows before those of this pass, as far as the model's own code should know."""
        return 0 if self._prefix is None or self.goes_apart else self._prefix.num_rows

    def past(self, layer_idx: int) -> KeysAndValues:
        """The prefix's keys and values in a layer."""
        assert self._prefix is not None
        return self._prefix.keys_and_values[layer_idx]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> KeysAndValues:
        """What the rows of this pass look at in a layer: the prefix's keys and values and their own."""
        self._read[layer_idx] = (key_states, value_states)
        if self._prefix is None or self.goes_apart:
            return key_states, value_states
        key, value = (part.expand(len(key_states), -1, -1, -1) for part in self.past(layer_idx))
        return torch.cat((key, key_states), dim=2), torch.cat((value, value_states), dim=2)

    @contextmanager
    def shown_to_attention(self) -> Iterator[None]:
        """Run the model inside: our attention finds the prefix here, which the library does not hand it."""
        before = _RUNNING.set(self)
        try:
            yield
        finally:
            _RUNNING.reset(before)

    def read_rows(self) -> Prefix:
        """What the pass has read, as a prefix for others."""
        return Prefix(tuple(self._read[layer] for layer in range(len(self._read))))


_RUNNING: ContextVar[PassCache | None] = ContextVar("the pass that our attention runs in", default=None)


def _attend_with_shared_prefix(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **further: Any,
) -> tuple[torch.Tensor, None]:
    """The library's `sdpa`, save in passes that leave the prefix to us. What is returned is [B, S, H, E]."""
    running = _RUNNING.get()
    if running is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **further)
    if asked := {name for name in ("softcap", "position_bias", "s_aux") if further.get(name) is not None}:
        raise NotImplementedError(f"attention with {', '.join(sorted(asked))}")
    visible = running.visible_B1SS
    visible = None if visible is None else visible.to(query.device)
    layer_idx: Any = module.layer_idx
    attended = attend(query, key, value, running.past(layer_idx), visible, scaling)
    return attended.transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register(SHARED_PREFIX, _attend_with_shared_prefix)
transformers.AttentionMaskInterface.register(SHARED_PREFIX, sdpa_mask)


class HuggingFaceCausalLM:
    """A Hugging Face causal LM whose tokens can be given any position IDs and any visibility.

    See `CausalLM` and `InspectableLM`. `load_hugging_face` makes sure that the model is of the kind that can.
    """

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        self._model = model.eval().requires_grad_(False)  # it is measured, not trained
        self._config = model.config.get_text_config()
        if getattr(self._config, "attn_logit_softcapping", None):
            # Fused attention cannot cap its scores, and some versions of the library drop the cap in silence.
            model.set_attn_implementation("eager")

    @property
    def shares_prefix(self) -> bool:
        """Whether a prefix is looked at as it is, without a copy for every sequence."""
        return self._config._attn_implementation == SHARED_PREFIX

    def share_prefix(self, is_shared: bool) -> None:
        """Look at prefixes with our attention in place of torch's; nothing where the model has its own.

        Whether a family's code lets us is to be tried (`obedience.py`).
        """
        now, wanted = ("sdpa", SHARED_PREFIX) if is_shared else (SHARED_PREFIX, "sdpa")
        if self._config._attn_implementation == now and self._model._can_set_attn_implementation():
            self._model.set_attn_implementation(wanted)

    @property
    def vocabulary_size(self) -> int:
        """Token IDs run from 0 to this, exclusive; many families pad it beyond their tokenizer's."""
        return self._model.get_output_embeddings().weight.shape[0]

    @property
    def num_parameters(self) -> int:
        """Embeddings included."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    @property
    def device(self) -> torch.device:
        """Where inputs must lie; with a device map, where the embedding does."""
        return self._model.get_input_embeddings().weight.device

    @torch.inference_mode()
    def read(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_1T: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Prefix]:
        """`hidden_states` of one sequence, and its keys and values."""
        cache = PassCache(None)
        hidden_1SD = self._run(token_ids_1S, position_ids_1S, visible_1SS, cache)
        return rows_of(hidden_1SD, query_rows_1T), cache.read_rows()

    @torch.inference_mode()
    def hidden_states(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None,
        prefix: Prefix | None = None,
    ) -> torch.Tensor:
        """The trunk's last hidden states at the query rows; all rows are computed, in every layer."""
        if prefix is None:
            return rows_of(self._run(token_ids_BS, position_ids_BS, visible_BSK, None), query_rows_BT)
        sees_all = visible_BSK is None or visible_BSK.shape[-1] == token_ids_BS.shape[1]
        goes_apart = sees_all and self.shares_prefix
        cache = PassCache(prefix, visible_BSK if goes_apart else None, goes_apart)
        with cache.shown_to_attention() if goes_apart else nullcontext():
            hidden_BSD = self._run(token_ids_BS, position_ids_BS, visible_BSK, cache)
        return rows_of(hidden_BSD, query_rows_BT)

    def sequence_bytes(self, num_rows: int, num_prefix_rows: int) -> int:
        """Memory of a pass for each sequence of its batch, from above: what one layer holds at once."""
        config, itemsize = self._config, self._model.dtype.itemsize
        width = config.hidden_size
        hidden_width = getattr(config, "intermediate_size", None) or 4 * width
        num_seen = num_rows if self.shares_prefix else num_prefix_rows + num_rows
        values = num_rows * (3 * width + max(10 * width, 3 * hidden_width)) + 4 * width * num_seen
        # Attention written out holds the scores twice in float32; fused attention holds none.
        is_written_out = config._attn_implementation == "eager"
        scores = config.num_attention_heads * num_rows * num_seen if is_written_out else 0
        return itemsize * values + 8 * scores

    def _run(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        cache: PassCache | None,
    ) -> torch.Tensor:
        if visible_BSK is None:
            # Never left to the library: without a mask it takes a gap in the position IDs for the border of
            # two packed sequences, and cuts the attention there.
            visible_BSK = causal_visibility(token_ids_BS.shape[1], token_ids_BS.device)
        num_past = 0 if cache is None else cache.get_seq_length()
        added = added_to_scores(visible_BSK, num_past, self._model.dtype)
        output = self._run_trunk(token_ids_BS, position_ids_BS, added, cache)
        return output.last_hidden_state.to(self.device)

    def _run_trunk(
        self,
        tokens: torch.Tensor,
        position_ids_BS: torch.Tensor,
        added_to_scores_B1SK: torch.Tensor,
        cache: PassCache | None,
        **asked: bool,
    ) -> Any:
        """The library's output of all layers.

        Args:
            tokens: token IDs [B, S], or their embeddings [B, S, D].
            asked: what else it should hold.
        """
        given = {"inputs_embeds" if tokens.is_floating_point() else "input_ids": tokens}
        return self._model.base_model(
            **given,
            position_ids=position_ids_BS.expand(tokens.shape[:2]),
            attention_mask=added_to_scores_B1SK,
            past_key_values=cache,
            use_cache=cache is not None,
            return_dict=True,
            **asked,
        )

    @torch.inference_mode()
    def watch_attention(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor | None,
        note: Callable[[torch.Tensor], None],
    ) -> None:
        """Call `note` with the attention of each query row (None: every row), layer by layer: [H, T, S].

        Raises:
            NotInspectableError: the family does not show its attention, or it does not sum to 1.
        """
        num_rows, device = token_ids_1S.shape[1], token_ids_1S.device
        if visible_1SS is None:
            visible_1SS = causal_visibility(num_rows, device)
        rows_T = torch.arange(num_rows, device=device) if query_rows_T is None else query_rows_T
        # The weights of a pass take the memory of its rows times all rows, in every layer and head at once:
        # rows before the first query row are only read.
        first = int(rows_T.min())
        cache = None
        if first:
            before = slice(None, first)
            _, read = self.read(
                token_ids_1S[:, before], position_ids_1S[:, before], visible_1SS[:, before, before], None
            )
            cache = PassCache(read)
        added = added_to_scores(visible_1SS[:, first:], first, self._model.dtype)
        with eager_attention(self._model):
            output = self._run_trunk(
                token_ids_1S[:, first:], position_ids_1S[:, first:], added, cache, output_attentions=True
            )
        for weights_HTS in shown_attention(self._model, output.attentions, rows_T - first):
            note(weights_HTS)

    @torch.enable_grad()
    def gate_gradients(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """Derivative of each target's loss by the gate of each row, at gate 1: float32 [T, S], nats.

        Raises:
            NotInspectableError: the family's attention has no derivative by its mask.
        """
        if visible_1SS is None:
            visible_1SS = causal_visibility(token_ids_1S.shape[1], token_ids_1S.device)
        # A gate multiplies exp(score), so its logarithm is added to the score, by way of the mask; at gate 1
        # the derivative by the one is that by the other.
        log_gates_S = torch.zeros(token_ids_1S.shape[1], device=self.device, requires_grad=True)
        least = torch.finfo(self._model.dtype).min
        added_1SS = torch.where(visible_1SS, log_gates_S, least).to(self._model.dtype)
        with eager_attention(self._model):
            output = self._run_trunk(token_ids_1S, position_ids_1S, added_1SS[:, None], None)
        losses_T = self._losses(output, query_rows_T, target_ids_T)[0]
        return gate_derivatives(self._model, losses_T, log_gates_S)

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """The tokens' embeddings, scaled where the family's embedding does that: [1, S, D]."""
        return self._model.get_input_embeddings()(token_ids_1S)

    @torch.enable_grad()
    def losses_of_embeddings(
        self,
        embedded_BSD: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """Each target's loss, given embeddings in the place of tokens: float32 [B, T], nats."""
        if visible_1SS is None:
            visible_1SS = causal_visibility(embedded_BSD.shape[1], embedded_BSD.device)
        added = added_to_scores(visible_1SS, 0, self._model.dtype)
        output = self._run_trunk(embedded_BSD, position_ids_1S, added, None)
        return self._losses(output, query_rows_T, target_ids_T)

    def _losses(self, output: Any, query_rows_T: torch.Tensor, target_ids_T: torch.Tensor) -> torch.Tensor:
        """Of a pass of the trunk: [B, T]."""
        logits_BTV = self._logits(output.last_hidden_state.to(self.device)[:, query_rows_T]).float()
        return torch.nn.functional.cross_entropy(
            logits_BTV.transpose(1, 2), target_ids_T.expand(len(logits_BTV), -1), reduction="none"
        )

    @torch.inference_mode()
    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Vocabulary logits [N, V], scaled and soft-capped as the family does."""
        return self._logits(hidden_ND)

    def _logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        logits_NV = self._model.get_output_embeddings()(hidden_ND).to(self.device)
        if scale := getattr(self._config, "logit_scale", None):  # Cohere
            logits_NV = logits_NV * scale
        if divisor := getattr(self._config, "logits_scaling", None):  # Granite
            logits_NV = logits_NV / divisor
        if cap := getattr(self._config, "final_logit_softcapping", None):  # Gemma
            logits_NV = (logits_NV / cap).tanh() * cap
        return logits_NV

    @torch.inference_mode()
    def stock_logits(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """What the model says when nothing is chosen for it, [S, V]: the witness of the check at loading."""
        return self._model(input_ids=token_ids_1S, use_cache=False).logits[0].to(self.device)


def load_hugging_face(
    folder: Path,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    device_map: str | None = None,
    trust_remote_code: bool = False,
    num_positions: int,
) -> HuggingFaceCausalLM:
    """Load a causal LM from a folder as `save_pretrained` and the hub's snapshots have it.

    Weights are read as tensors only: safetensors, or older files with `weights_only`.

    Args:
        device: where the model goes, unless `device_map` says it.
        dtype: of weights and computation.
        device_map: as accelerate takes it, "auto" to spread the layers over all devices.
        trust_remote_code: run the Python files in the folder, where the family is not the library's own.
        num_positions: how many position IDs, from 0 on, will be used.

    Raises:
        InputError: not a causal LM, incomplete, too large for the device, no place for so many positions, or
            not obeying what the interface promises.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    _refuse_encoders(folder, trust_remote_code)
    model = stock_hugging_face(folder, dtype, device_map, trust_remote_code)
    if device_map is None:
        refuse_model_beyond_memory(model, device, str(folder))
        model = model.to(device)
    if limit := position_limit(model.config.get_text_config(), _has_rotary_embedding(model)):
        limit.refuse(num_positions, str(folder))
    lm = HuggingFaceCausalLM(model)
    lm.share_prefix(True)
    if lm.shares_prefix:
        with suppress(InputError):
            refuse_disobedient(lm, lm.stock_logits, str(folder), num_positions)
            return lm
        lm.share_prefix(False)
    refuse_disobedient(lm, lm.stock_logits, str(folder), num_positions)
    return lm


def num_positions_of(folder: Path, trust_remote_code: bool = False) -> int | None:
    """How many positions a model was made for, by its configuration: trained, in a table, or in a window.

    Raises:
        InputError: the configuration cannot be used.
    """
    config = hugging_face_config(folder, trust_remote_code).get_text_config()
    limit = position_limit(config, has_rotary_embedding=True)
    stated = getattr(config, "max_position_embeddings", None)
    numbers = [int(stated)] if stated else []
    if limit is not None:
        numbers.append(limit.num_positions)
    return min(numbers, default=None)


def _refuse_encoders(folder: Path, trust_remote_code: bool) -> None:
    config = hugging_face_config(folder, trust_remote_code)
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"{folder} holds an encoder-decoder ({config.model_type}); only causal (decoder-only) language"
            " models can be measured"
        )


def _has_rotary_embedding(model: nn.Module) -> bool:
    """Whether positions are rotations, which exist for any ID, and not rows of a table."""
    return any("RotaryEmbedding" in type(module).__name__ for module in model.modules())
