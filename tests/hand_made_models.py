"""Models whose losses and costs a human can work out."""

from collections.abc import Callable, Set

import torch

from sparsity_length.models.attention import attend
from sparsity_length.models.interface import CausalLM, Running, rows_of


class EvidenceLM(CausalLM):
    """Says `answer` with a logit that depends on which tokens it sees, all other tokens with logit 0.

    Where, how often and in which order it sees them makes no difference. Its hidden state is a vector of
    ones at the tokens seen.
    """

    vocabulary_size = 0

    def __init__(self, vocabulary_size: int, answer: int, logit_of: Callable[[Set[int]], float]) -> None:
        super().__init__(torch.nn.Embedding.from_pretrained(torch.eye(vocabulary_size)))
        self.vocabulary_size = vocabulary_size
        self._answer = answer
        self._logit_of = logit_of

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        return self._model(token_ids_1S)

    def _states(
        self,
        tokens: torch.Tensor,
        position_ids_BS: torch.Tensor,
        query_rows_BT: torch.Tensor | None,
        running: Running,
    ) -> torch.Tensor:
        """Keys and values are the tokens; queries of zeros attend alike to all that are seen."""
        own_B1SV = self.embed(tokens)[:, None]
        mean_B1SV = attend(running, 0, torch.zeros_like(own_B1SV), own_B1SV, own_B1SV, running.visible_B1SK)
        return rows_of((mean_B1SV[:, 0] > 0).float(), query_rows_BT)

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        logits_NV = torch.zeros_like(hidden_ND)
        for row, hidden_D in enumerate(hidden_ND):
            logits_NV[row, self._answer] = self._logit_of(set(hidden_D.nonzero()[:, 0].tolist()))
        return logits_NV
