"""A model that begins every context with the same tokens, as a beginning-of-text token (BOS).

A model that was trained with BOS expects it before whatever it reads: it belongs to the model, not to a
context. So it is put here, at the position IDs 0 … b - 1, in front of every pass of the model, and hence of
every context: long, short, sparse, swapped, the null's. All rows see it. Measuring code neither sees nor
counts it: the position IDs that it gives are the text's, from 0, to which b is added, and what it is told of
queries, keys, attention and derivatives is of the text's rows.

Shapes: b leading tokens, B batch, S rows, P rows of a prefix, K = S or P + S, T query rows.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch.nn.functional import pad

from pipeline.models.interface import CausalLM, Kept, OfHeads, Prefix, causal_visibility


def num_positions_of(num_tokens: int, num_leading: int) -> int:
    """How many position IDs a chunk takes behind leading tokens.

    Its last token is predicted and never read, which makes room for one of these.
    """
    return num_tokens + max(0, num_leading - 1)


def led_by(model: CausalLM, token_ids: Sequence[int]) -> CausalLM:
    """The model, with these tokens before everything that it reads; the model itself if there are none."""
    return LedCausalLM(model, token_ids) if len(token_ids) else model


class LedCausalLM(CausalLM):
    """A model behind tokens of its own; `led_by` makes it. Arguments and results are those of the text."""

    def __init__(self, model: CausalLM, token_ids: Sequence[int]) -> None:
        super().__init__(model._model)
        self._inner, self._num_leading = model, len(token_ids)
        self._token_ids_1b = torch.as_tensor(np.array([token_ids], dtype=np.int64), device=model.device)
        self._position_ids_1b = torch.arange(self._num_leading, device=model.device)[None]
        with torch.no_grad():  # not inference mode: derivatives are taken behind these rows
            _, prefix = model._run(self._token_ids_1b, self._position_ids_1b, None, None, keeps_rows=True)
        assert prefix is not None
        self._leading = prefix

    @property
    def vocabulary_size(self) -> int:
        """See `CausalLM.vocabulary_size`."""
        return self._inner.vocabulary_size

    @property
    def device(self) -> torch.device:
        """See `CausalLM.device`."""
        return self._inner.device

    def sequence_bytes(self, num_rows: int, num_prefix_rows: int) -> int:
        """With the leading tokens as rows of the prefix, which they are."""
        return self._inner.sequence_bytes(num_rows, num_prefix_rows + self._num_leading)

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """Of the text's tokens."""
        return self._inner.embed(token_ids_1S)

    def derivable_attention(self) -> AbstractContextManager[None]:
        """See `CausalLM.derivable_attention`."""
        return self._inner.derivable_attention()

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._inner._project(hidden)

    def _run(
        self, tokens: torch.Tensor, position_ids_BS: torch.Tensor, visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None, prefix: Prefix | None = None, *, keeps_rows: bool = False,
    ) -> tuple[torch.Tensor, Prefix | None]:  # fmt: skip
        """The rows that are kept are the text's: the leading ones come anew before each prefix."""
        if visible_BSK is not None and visible_BSK.shape[-1] > tokens.shape[1]:  # of the prefix too
            visible_BSK = pad(visible_BSK, (self._num_leading, 0), value=visible_BSK.dtype == torch.bool)
        return self._inner._run(
            tokens, position_ids_BS + self._num_leading, visible_BSK, query_rows_BT, self._before(prefix),
            keeps_rows=keeps_rows,
        )  # fmt: skip

    def _before(self, prefix: Prefix | None) -> Prefix:
        """The leading rows, and behind them those of a prefix, which may be of each sequence its own."""
        if prefix is None:
            return self._leading
        batch_size, ids_1b = len(prefix.keys_and_values[0][0]), self._leading.position_ids_BP
        leading = Prefix(
            tuple(
                (key.expand(batch_size, -1, -1, -1), value.expand(batch_size, -1, -1, -1))
                for key, value in self._leading.keys_and_values
            ),
            None if ids_1b is None else ids_1b.expand(batch_size, -1),
        )
        return Prefix.together([leading, prefix])

    @torch.inference_mode()
    def watch_heads(
        self, token_ids_1S: torch.Tensor, position_ids_1S: torch.Tensor, visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor | None, of_layer: OfHeads[Kept],
    ) -> list[Kept]:  # fmt: skip
        """See `CausalLM.watch_heads`; what the leading tokens get of a row's attention is not shown."""
        num = self._num_leading
        if visible_1SS is not None:
            visible_1SS = pad(visible_1SS, (num, 0), value=True)
            before_1bS = causal_visibility(visible_1SS.shape[-1], self.device)[:, :num]
            visible_1SS = torch.cat((before_1bS, visible_1SS), dim=1)

        def of_text(queries: torch.Tensor, keys: torch.Tensor, attention_HTS: torch.Tensor) -> Kept:
            own_rows = num if query_rows_T is None else 0
            return of_layer(queries[:, num:], keys[:, num:], attention_HTS[:, own_rows:, num:])

        return self._inner.watch_heads(
            torch.cat((self._token_ids_1b, token_ids_1S), dim=1),
            torch.cat((self._position_ids_1b, position_ids_1S + num), dim=1),
            visible_1SS,
            None if query_rows_T is None else query_rows_T + num,
            of_text,
        )
