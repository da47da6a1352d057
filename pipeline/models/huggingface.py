"""Hugging Face causal LMs behind the `CausalLM` interface, and the door to the `transformers` library.

The model's own code runs; what is ours is what it is told: position IDs, a mask, the keys and values of a
shared prefix. Families differ in more ways than a reader can check, so a model that is loaded must show on a
few tokens that it obeys (`obedience.py`), or it is refused.

Shapes: B batch, S rows, P rows of a prefix, K = S or P + S, T query rows, D width, G key-value
heads, E head width, V vocabulary, N any number of rows.
"""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from pipeline.errors import InputError
from pipeline.models.causal_lm import Prefix, causal_visibility, rows_of
from pipeline.models.devices import refuse_model_beyond_memory
from pipeline.models.huggingface_files import hugging_face_config, stock_hugging_face
from pipeline.models.huggingface_inspection import (
    candidate_derivatives,
    eager_attention,
    gate_derivatives,
    shown_attention,
)
from pipeline.models.huggingface_prefix import SHARED_PREFIX, PassCache
from pipeline.models.obedience import refuse_disobedient
from pipeline.models.position_limit import position_limit
from pipeline.models.score_masks import added_to_scores, candidates_nearly_closed


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

    @torch.enable_grad()
    def candidate_gradients(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        answers: torch.Tensor,
        candidates: Prefix,
        visible_BSP: torch.Tensor,
    ) -> torch.Tensor:
        """Derivative of each sequence's loss by each candidate's gate, at gate 0: float32 [B, P], nats."""
        added = candidates_nearly_closed(visible_BSP, self._model.dtype).requires_grad_()
        cache = PassCache(candidates.copy())
        with eager_attention(self._model):
            output = self._run_trunk(token_ids_BS, position_ids_BS, added, cache, output_attentions=True)
        logits_BV = self._logits(output.last_hidden_state.to(self.device)[:, -1]).float()
        losses_B = torch.nn.functional.cross_entropy(logits_BV, answers, reduction="none")
        return candidate_derivatives(self._model, losses_B, output.attentions, candidates.num_rows)

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
