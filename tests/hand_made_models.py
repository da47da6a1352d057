"""Models whose losses and costs a human can work out."""

from collections.abc import Callable, Set

import numpy as np
import torch

from sparsity_length.models.interface import rows_of, visibility_of_all, visibility_with_prefix


class EvidenceLM:
    """Says `answer` with a logit that depends on which tokens it sees, all other tokens with logit 0.

    Where, how often and in which order it sees them makes no difference. Its hidden state is a vector of
    ones at the tokens seen.
    """

    device = torch.device("cpu")
    sees_all = True

    def __init__(self, vocabulary_size: int, answer: int, logit_of: Callable[[Set[int]], float]) -> None:
        self.vocabulary_size = vocabulary_size
        self._answer = answer
        self._logit_of = logit_of

    def read(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_1T: torch.Tensor,
        prefix: "TokensRead | None" = None,
    ) -> tuple[torch.Tensor, "TokensRead"]:
        hidden = self.hidden_states(token_ids_1S, position_ids_1S, visible_1SS, query_rows_1T, prefix)
        own = TokensRead(token_ids_1S)
        return hidden, own if prefix is None else prefix.beside(own)

    def hidden_states(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor,
        prefix: "TokensRead | None" = None,
    ) -> torch.Tensor:
        batch_size, num_rows = token_ids_BS.shape
        past_BP = token_ids_BS[:, :0] if prefix is None else prefix.tokens_1P.expand(batch_size, -1)
        tokens_BK = torch.cat([past_BP, token_ids_BS], dim=1)
        if visible_BSK is not None and visible_BSK.shape[1] < num_rows:
            visible_BSK = visibility_of_all(visible_BSK, num_rows)
        visible_BSK = visibility_with_prefix(visible_BSK, num_rows, tokens_BK.shape[1], self.device)
        visible_BTK = rows_of(visible_BSK, query_rows_BT)
        seen_BTKV = torch.nn.functional.one_hot(tokens_BK, self.vocabulary_size)[:, None]
        return (seen_BTKV * visible_BTK[..., None]).amax(2).float()

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        logits_NV = torch.zeros_like(hidden_ND)
        for row, hidden_D in enumerate(hidden_ND):
            logits_NV[row, self._answer] = self._logit_of(set(hidden_D.nonzero()[:, 0].tolist()))
        return logits_NV


class TokensRead:
    """The prefix of an `EvidenceLM`."""

    def __init__(self, tokens_1P: torch.Tensor) -> None:
        self.tokens_1P = tokens_1P
        self.num_rows = tokens_1P.shape[1]

    def first(self, num_rows: int) -> "TokensRead":
        return TokensRead(self.tokens_1P[:, :num_rows])

    def rows(self, places: np.ndarray) -> "TokensRead":
        return TokensRead(self.tokens_1P[:, places])

    def beside(self, other: "TokensRead") -> "TokensRead":
        return TokensRead(torch.cat([self.tokens_1P, other.tokens_1P], dim=1))


class SeenTokens:
    """Writes down what it is shown, and is sure that the token of a query row is said again."""

    vocabulary_size = 100
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.batches: list[tuple[list, list]] = []

    def hidden_states(
        self,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        visible: torch.Tensor | None,
        query_rows: torch.Tensor,
        prefix: None = None,
    ) -> torch.Tensor:
        self.batches.append((token_ids.tolist(), position_ids.tolist()))
        return torch.nn.functional.one_hot(token_ids.gather(1, query_rows), 100).float()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * 100
