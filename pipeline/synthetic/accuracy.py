"""How well a task model answers, generating freely: every token, and with PPC every position ID, is its own.

Dimension letters: B examples, P tokens of a prompt, T of a response, S = P + T.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pipeline.results.statistics import wilson_interval
from pipeline.synthetic.config import TaskConfig
from pipeline.synthetic.models import TaskModel
from pipeline.synthetic.tasks import BEST_LOSS_OF_CUES, Example, task_called


@torch.inference_mode()
def generate(
    model: TaskModel,
    prompt_ids_BP: torch.Tensor,
    position_ids_BS: torch.Tensor,
    *,
    num_tokens: int,
    predict_position_ids: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The likeliest token at every place of the response, each read back before the next.

    The prompt is read once; then each pass reads one token of every sequence, whose key is rotated by the ID
    that it was given or that was predicted for it.

    With `predict_position_ids` the response's IDs are the likeliest ones, read back too, and only the
    prompt's need be given.

    Returns:
        Tokens and position IDs of the response: two int64 [B, T], T = `num_tokens`; and the logits of its
        first token: [B, V].
    """
    num_prompt_tokens = prompt_ids_BP.shape[1]
    tokens_B1 = prompt_ids_BP
    ids_B1 = position_ids_BS[:, :num_prompt_tokens]
    past = None
    tokens = []
    position_ids = []
    logits = []
    for place in range(num_prompt_tokens, num_prompt_tokens + num_tokens):
        hidden_BSD, read = model(tokens_B1, ids_B1, past, keeps_rows=True)
        past = past.before(read) if past else read
        last_B1D = hidden_BSD[:, -1:]
        logits.append(model.token_logits(last_B1D))
        tokens_B1 = logits[-1].argmax(-1)
        ids_B1 = position_ids_BS[:, place : place + 1]
        if predict_position_ids:
            ids_B1 = model.position_logits(last_B1D).argmax(-1)
        tokens.append(tokens_B1)
        position_ids.append(ids_B1)
    return torch.cat(tokens, dim=1), torch.cat(position_ids, dim=1), logits[0][:, 0]


@dataclass(frozen=True)
class Answers:
    """The responses, which parts of them were right, and what their first tokens cost."""

    token_ids_BT: np.ndarray
    """int64; as the model gave them."""
    token_is_right_BT: np.ndarray
    """bool."""
    position_id_is_right_BT: np.ndarray
    """bool; true where IDs are given and not predicted."""
    excess_losses_B: np.ndarray | None
    """float64, nats; loss of a response of one token beyond the best possible one. None: it is not known.

    It is KL(posterior || model): the mean over what the answer could have been, with these cues. So it is
    less noisy than the loss of the answer that was drawn less the best loss, and has the same mean."""

    @property
    def is_right_B(self) -> np.ndarray:
        """Whether the whole response is right: every token and every ID."""
        return (self.token_is_right_BT & self.position_id_is_right_BT).all(1)


def answers(
    model: TaskModel,
    examples: Sequence[Example],
    config: TaskConfig,
    generator: np.random.Generator,
    examples_per_batch: int,
) -> Answers:
    """Let a model that was trained with `config` answer; `generator` draws random starts."""
    first = examples[0].num_prompt_tokens  # of the response
    device = model.lm.device
    token_ids_BS = torch.from_numpy(np.stack([example.token_ids_S for example in examples])).to(device)
    position_ids_BS = torch.from_numpy(config.position_ids(examples, generator, in_testing=True)).to(device)
    generated = [
        generate(
            model,
            prompt_ids_BP,
            ids_BS,
            num_tokens=token_ids_BS.shape[1] - first,
            predict_position_ids=config.positions == "predicted",
        )
        for prompt_ids_BP, ids_BS in zip(
            token_ids_BS[:, :first].split(examples_per_batch),
            position_ids_BS.split(examples_per_batch),
            strict=True,
        )
    ]
    tokens_BT, ids_BT, logits_BV = (torch.cat(parts).cpu() for parts in zip(*generated, strict=True))
    posteriors = [example.log_posterior_V for example in examples if example.log_posterior_V is not None]
    excess_losses_B = None
    if posteriors:
        log_p_BV = torch.from_numpy(np.stack(posteriors))
        log_q_BV = logits_BV.double().log_softmax(-1)
        terms_BV = log_p_BV.exp() * torch.where(log_p_BV.isfinite(), log_p_BV - log_q_BV, 0.0)
        excess_losses_B = terms_BV.sum(-1).numpy()
    return Answers(
        tokens_BT.numpy(),
        (tokens_BT == token_ids_BS[:, first:].cpu()).numpy(),
        (ids_BT == position_ids_BS[:, first:].cpu()).numpy(),
        excess_losses_B,
    )


_EXAMPLES_PER_BATCH = 100
"""Examples that are generated together."""


def accuracy_tables(
    model: TaskModel, examples: Sequence[Example], config: TaskConfig, generator: np.random.Generator
) -> dict[str, dict[str, list[Any]]]:
    """Columns of `synthetic_accuracy`, one row, and of `synthetic_examples`."""
    found = answers(model, examples, config, generator, _EXAMPLES_PER_BATCH)
    exact = wilson_interval(int(found.is_right_B.sum()), len(examples))
    task = task_called(config.task)
    row: dict[str, Any] = {
        "num_tokens": len(examples[0].token_ids_S),
        "num_examples": len(examples),
        "exact_match": exact.estimate,
        "exact_match_low": exact.low,
        "exact_match_high": exact.high,
        "token_accuracy": float(found.token_is_right_BT.mean()),
    }
    of_examples: dict[str, list[Any]] = {
        "example_index": list(range(len(examples))),
        "is_right": found.is_right_B.tolist(),
        "answer": [task.vocabulary[token_id] for token_id in found.token_ids_BT[:, 0]],
    }
    if config.positions == "predicted":
        row["position_id_accuracy"] = float(found.position_id_is_right_BT.mean())
    if task.has_sparsity:
        of_examples["decisive_tokens"] = [
            " ".join(task.vocabulary[example.token_ids_S[place]] for place in example.dependencies[0])
            for example in examples
        ]
    if found.excess_losses_B is not None:
        of_examples["excess_loss"] = found.excess_losses_B.tolist()
        of_examples["distances"] = [
            [example.num_prompt_tokens - 1 - place for place in example.dependencies[0]]
            for example in examples
        ]
        row |= {
            "excess_loss": float(found.excess_losses_B.mean()),
            "excess_loss_error": float(found.excess_losses_B.std() / len(examples) ** 0.5),
            "best_loss": BEST_LOSS_OF_CUES,
        }
    of_cell = {name: [value] for name, value in row.items()}
    return {"synthetic_accuracy": of_cell, "synthetic_examples": of_examples}
