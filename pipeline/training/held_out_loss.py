"""The loss on held-out text at several context lengths, so that length generalization shows while training.

A monitor and not a measurement: within a sequence a target sees whatever stands before it, so the mean is
over contexts of every length up to the sequence's. length_losses.py measures at exactly so many tokens.
Dimension letters: D documents, L the longest context length, W sequences, S of a sequence, V vocabulary.
"""

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch

from pipeline.text.evaluation_documents import EvaluationDocument
from pipeline.text.tokenized_data import TokenizedData
from pipeline.training.configuration import PretrainConfig
from pipeline.training.next_token import next_token_loss

logger = logging.getLogger("pipeline")

LogitsAt = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(token_ids_WS, position_ids_1S) -> logits_WSV."""


class HeldOutLoss:
    """The same tokens at every context length: the first L tokens of the first D documents that have so many.

    At context length c the L tokens of a document are cut into L / c sequences of c tokens, each at position
    IDs 0 … c - 1; the loss is the mean cross-entropy, in nats, of every token but the first of its sequence:
    that of training, at contiguous positions. Documents stand in the order of their IDs, which are hashes.
    """

    def __init__(
        self,
        documents: Sequence[EvaluationDocument],
        context_lengths: Sequence[int],
        num_documents: int,
        tokens_per_batch: int,
    ) -> None:
        """Choose the tokens.

        Args:
            documents: held-out documents, one of them at least as long as the longest context.
            context_lengths: in tokens; each divides the longest.
            num_documents: D; fewer are taken where fewer are long enough.
            tokens_per_batch: the most tokens in one forward pass, one sequence at least.

        """
        longest = max(context_lengths)
        chosen = [
            document.token_ids[:longest] for document in documents if len(document.token_ids) >= longest
        ]
        assert chosen, f"no document has {longest} tokens"
        self._token_ids_DL = torch.from_numpy(np.stack(chosen[:num_documents]).astype(np.int64))
        self._context_lengths = sorted(set(context_lengths))
        self._tokens_per_batch = tokens_per_batch

    def __call__(self, logits_at: LogitsAt, device: torch.device) -> dict[str, float]:
        """`held_out_loss_nats_at_<c>` of every context length c.

        Args:
            logits_at: the model, in evaluation mode and without gradients.
            device: where it takes its inputs.
        """
        return {
            f"held_out_loss_nats_at_{length}": self._mean_loss(logits_at, device, length)
            for length in self._context_lengths
        }

    def _mean_loss(self, logits_at: LogitsAt, device: torch.device, context_length: int) -> float:
        token_ids_WS = self._token_ids_DL.reshape(-1, context_length).to(device)
        position_ids_1S = torch.arange(context_length, device=device)[None]
        sums = [
            next_token_loss(logits_at(batch_WS, position_ids_1S), batch_WS, reduction="sum")
            for batch_WS in token_ids_WS.split(max(1, self._tokens_per_batch // context_length))
        ]
        return float(torch.stack(sums).sum()) / (len(token_ids_WS) * (context_length - 1))


def held_out_loss_of(config: PretrainConfig, data: TokenizedData) -> HeldOutLoss | None:
    """The monitor that `config` asks for, on the evaluation documents of `data`.

    None where it asks for none; or, with a line in the log, where no document is long enough: a run is not
    refused for want of a monitor.
    """
    if not config.eval_context_lengths:
        return None
    documents, lengths = data.evaluation_documents(), config.eval_context_lengths
    if max((len(document.token_ids) for document in documents), default=0) < max(lengths):
        logger.info("no evaluation document has %d tokens: no held-out loss is measured", max(lengths))
        return None
    tokens_per_batch = config.device_train_microbatch_size * config.sequence_length
    return HeldOutLoss(documents, lengths, config.eval_num_documents, tokens_per_batch)
