"""A model of a synthetic task behind the interface that measuring code sees, for one example.

Measuring code names a token by its place; the model reads it at the position ID that the place has in this
example, which a random start or coupling makes another number.

Shapes: B batch, S rows of a sequence, P rows of a prefix, K = S or P + S, L tokens of the example, D width,
V vocabulary, T query rows, I position IDs.
"""

from contextlib import AbstractContextManager

import numpy as np
import torch

from pipeline.models.interface import CausalLM, NoteHeads, Prefix, rows_of
from pipeline.synthetic.models import TaskModel


class TaskCausalLM(CausalLM):
    """Predicts the next token of one example; position IDs of `CausalLM` are places.

    Args:
        model: it is measured from now on, and not trained.
        vocabulary_size: V, of the task.
        position_ids_L: int64; the position ID of each place.
    """

    _model: TaskModel

    def __init__(self, model: TaskModel, vocabulary_size: int, position_ids_L: torch.Tensor) -> None:
        super().__init__(model)
        self._vocabulary_size, self._position_ids_L = vocabulary_size, position_ids_L.to(model.device)

    @property
    def vocabulary_size(self) -> int:
        """See `CausalLM.vocabulary_size`."""
        return self._vocabulary_size

    @property
    def device(self) -> torch.device:
        """See `CausalLM.device`."""
        return self._model.device

    def sequence_bytes(self, num_rows: int, num_prefix_rows: int) -> int:
        """See `CausalLM.sequence_bytes`."""
        return self._model.lm.sequence_bytes(num_rows, num_prefix_rows)

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.embed`."""
        return self._model.lm.embed(token_ids_1S)

    def _placed(
        self, tokens: torch.Tensor, position_ids_BS: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings as the first layer is given them, and the position IDs of the places."""
        ids_BS = self._position_ids_L[position_ids_BS]
        embedded_BSD = tokens if tokens.is_floating_point() else self.embed(tokens)
        return self._model.placed(embedded_BSD, ids_BS), ids_BS

    def _run(
        self, tokens: torch.Tensor, position_ids_BS: torch.Tensor, visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None, prefix: Prefix | None = None, *, keeps_rows: bool = False,
    ) -> tuple[torch.Tensor, Prefix | None]:  # fmt: skip
        placed_BSD, ids_BS = self._placed(tokens, position_ids_BS)
        of_all = placed_BSD, ids_BS, visible_BSK, None, prefix
        hidden_BSD, read = self._model.lm._run(*of_all, keeps_rows=keeps_rows)
        return rows_of(hidden_BSD, query_rows_BT), read

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.token_logits(hidden)

    def derivable_attention(self) -> AbstractContextManager[None]:
        """See `CausalLM.derivable_attention`."""
        return self._model.lm.derivable_attention()

    def watch_heads(
        self, token_ids_1S: torch.Tensor, position_ids_1S: torch.Tensor, visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor | None, note: NoteHeads,
    ) -> None:  # fmt: skip
        """See `CausalLM.watch_heads`."""
        placed_1SD, ids_1S = self._placed(token_ids_1S, position_ids_1S)
        self._model.lm.watch_heads(placed_1SD, ids_1S, visible_1SS, query_rows_T, note)


class PositionIdLM(TaskCausalLM):
    """The head of position IDs (PPC): predicts the next position ID of one example.

    Measuring code takes what is to be predicted from the sequence itself: the target is a token, and tokens
    are what is read. Here tokens are read and position IDs predicted, so both are written as codes: I
    position IDs, then the vocabulary. A target is the code of its ID, which stands for its token wherever it
    is read; IDs occur once in a response. Every other token is its code in the vocabulary.

    Args:
        model: it has the component; measured from now on, and not trained.
        vocabulary_size: V, of the task.
        position_ids_L: int64; the position ID of each place.
        token_ids_L: int64; the example.
        num_prompt_tokens: the others are the response, whose position IDs are to be predicted.
    """

    def __init__(
        self, model: TaskModel, vocabulary_size: int, position_ids_L: torch.Tensor, token_ids_L: np.ndarray,
        num_prompt_tokens: int,
    ) -> None:  # fmt: skip
        super().__init__(model, vocabulary_size, position_ids_L)
        assert model.position_ids is not None
        self._num_position_ids = len(model.position_ids.table_ID)
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

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """Of codes."""
        return super().embed(self._token_of_code[token_ids_1S])

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        """On position IDs: [..., I]."""
        return self._model.position_logits(hidden)
