"""A model of a synthetic task, and its head of position IDs, behind the interface that measuring code sees.

Measuring code names a token by its place; the model reads it at the position ID that the place has in this
example, which a random start or coupling makes another number.

Shapes: B batch, S rows of a sequence, P rows of a prefix, K = S or P + S, L tokens of the example, D width,
V vocabulary, T query rows, I position IDs, N any number of rows.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch

from pipeline.models.interface import InspectableLM, Prefix, rows_of
from pipeline.synthetic.models import TaskModel

_VALUES_PER_ROW = 16
"""In widths: the stream and its norm; queries, keys and values, or the feed-forward layer twice."""


class TaskCausalLM:
    """Implements `CausalLM` and `InspectableLM` for the places of one example.

    The head of position IDs (PPC) is asked by `PositionIdLM`.
    """

    def __init__(self, model: TaskModel, vocabulary_size: int, position_ids_L: torch.Tensor) -> None:
        """Look at a model through the places of an example.

        Args:
            model: read only.
            vocabulary_size: V, of the task.
            position_ids_L: int64; the position ID of each place.
        """
        self._model, self._vocabulary_size = model, vocabulary_size
        self._position_ids_L = position_ids_L.to(model.device)

    @property
    def vocabulary_size(self) -> int:
        """See `CausalLM.vocabulary_size`."""
        return self._vocabulary_size

    @property
    def num_parameters(self) -> int:
        """See `CausalLM.num_parameters`."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    @property
    def device(self) -> torch.device:
        """See `CausalLM.device`."""
        return self._model.device

    @torch.inference_mode()
    def read(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_1T: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Prefix]:
        """See `CausalLM.read`; the position IDs are places."""
        hidden_1SD, prefix = self._model(
            token_ids_1S, self._position_ids_L[position_ids_1S], None, visible_1SS
        )
        return rows_of(hidden_1SD, query_rows_1T), prefix

    @torch.inference_mode()
    def hidden_states(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None,
        prefix: Prefix | None = None,
    ) -> torch.Tensor:
        """See `CausalLM.hidden_states`; the position IDs are places."""
        hidden_BSD, _ = self._model(token_ids_BS, self._position_ids_L[position_ids_BS], prefix, visible_BSK)
        return rows_of(hidden_BSD, query_rows_BT)

    def sequence_bytes(self, num_rows: int, num_prefix_rows: int) -> int:
        """See `CausalLM.sequence_bytes`."""
        width, itemsize = self._model.trunk.width, next(self._model.parameters()).element_size()
        return itemsize * width * (_VALUES_PER_ROW * num_rows + 2 * (num_prefix_rows + num_rows))

    @torch.inference_mode()
    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.logits`."""
        return self._model.token_logits(hidden_ND)

    @cached_property
    def _inside(self) -> InspectableLM:
        return self._model.trunk.inside()

    def watch_attention(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor | None,
        note: Callable[[torch.Tensor], None],
    ) -> None:
        """See `InspectableLM.watch_attention`; the position IDs are places."""
        placed, ids = self._placed(self.embed(token_ids_1S), position_ids_1S)
        self._inside.watch_attention(placed, ids, visible_1SS, query_rows_T, note)

    def gate_gradients(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """See `InspectableLM.gate_gradients`; the position IDs are places."""
        placed, ids = self._placed(self.embed(token_ids_1S), position_ids_1S)
        return self._inside.gate_gradients(placed, ids, visible_1SS, query_rows_T, target_ids_T)

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """See `InspectableLM.embed`."""
        return self._model.trunk.embed(token_ids_1S)

    def losses_of_embeddings(
        self,
        embedded_BSD: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """See `InspectableLM.losses_of_embeddings`; the position IDs are places."""
        placed, ids = self._placed(embedded_BSD, position_ids_1S)
        return self._inside.losses_of_embeddings(placed, ids, visible_1SS, query_rows_T, target_ids_T)

    def _placed(
        self, embedded_BSD: torch.Tensor, position_ids_1S: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings as the first layer is given them, and the position IDs of the places."""
        ids_1S = self._position_ids_L[position_ids_1S]
        return self._model.placed(embedded_BSD, ids_1S), ids_1S


class PositionIdLM(TaskCausalLM):
    """Predicts the next position ID (PPC); implements `CausalLM` and `InspectableLM`.

    Measuring code takes what is to be predicted from the sequence itself: the target is a token, and tokens
    are what is read. Here tokens are read and position IDs predicted, so both are written as codes: I
    position IDs, then the vocabulary. A target is the code of its ID, which stands for its token wherever it
    is read; IDs occur once in a response. Every other token is its code in the vocabulary.
    """

    def __init__(
        self,
        model: TaskModel,
        vocabulary_size: int,
        position_ids_L: torch.Tensor,
        token_ids_L: np.ndarray,
        num_prompt_tokens: int,
    ) -> None:
        """Look at a model through the places of an example.

        Args:
            model: read only; it has the component.
            vocabulary_size: V, of the task.
            position_ids_L: int64; the position ID of each place.
            token_ids_L: int64; the example.
            num_prompt_tokens: the others are the response, whose position IDs are to be predicted.
        """
        super().__init__(model, vocabulary_size, position_ids_L)
        assert model.position_ids is not None
        self._head, self._num_position_ids = model.position_ids, len(model.position_ids.table_ID)
        response_ids_T = position_ids_L[num_prompt_tokens:].cpu().numpy()
        assert len(set(response_ids_T.tolist())) == len(response_ids_T), "a code stands for one token"
        token_of_code = np.concatenate([np.zeros(self._num_position_ids, int), np.arange(vocabulary_size)])
        token_of_code[response_ids_T] = token_ids_L[num_prompt_tokens:]
        self._token_of_code = torch.from_numpy(token_of_code).to(model.device)
        self.codes_L = self.codes_of(token_ids_L)
        """int64; the example in codes: the response as IDs to be predicted."""
        self.codes_L[num_prompt_tokens:] = response_ids_T

    def codes_of(self, token_ids: np.ndarray) -> np.ndarray:
        """Tokens that are read and not to be predicted."""
        return self._num_position_ids + token_ids

    @property
    def vocabulary_size(self) -> int:
        """I: of what is predicted."""
        return self._num_position_ids

    def read(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_1T: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Prefix]:
        """See `CausalLM.read`."""
        return super().read(self._token_of_code[token_ids_1S], position_ids_1S, visible_1SS, query_rows_1T)

    def hidden_states(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None,
        prefix: Prefix | None = None,
    ) -> torch.Tensor:
        """See `CausalLM.hidden_states`."""
        tokens_BS = self._token_of_code[token_ids_BS]
        return super().hidden_states(tokens_BS, position_ids_BS, visible_BSK, query_rows_BT, prefix)

    @torch.inference_mode()
    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Of position IDs: [N, I]."""
        return self._head.logits(hidden_ND)

    @cached_property
    def _inside(self) -> InspectableLM:
        return self._model.trunk.inside(self._head.as_head())

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """See `InspectableLM.embed`."""
        return super().embed(self._token_of_code[token_ids_1S])
