"""How well a task model answers, generating freely: every token, and with PPC every position ID, is its own.

Dimension letters: B examples, P tokens of a prompt, T of a response, S = P + T.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from pipeline.results.statistics import Interval, wilson_interval
from pipeline.synthetic.config import TaskConfig
from pipeline.synthetic.models import TaskModel
from pipeline.synthetic.tasks import BEST_LOSS_OF_CUES, ExampleBatch, task_called


@torch.inference_mode()
def generate(
    model: TaskModel,
    prompt_ids_BP: torch.Tensor,
    position_ids_BS: torch.Tensor,
    *,
    num_tokens: int,
    predict_position_ids: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token at every place of the response, each read back before the next.

    The prompt is read once; then each pass reads one token of every sequence, whose key is rotated by the ID
    that it was given or that was predicted for it.

    With `predict_position_ids` the response's IDs are the likeliest ones, read back too, and only the
    prompt's need be given.

    Returns:
        Tokens and position IDs of the response: two int64 [B, T], T = `num_tokens`.
    """
    num_prompt_tokens = prompt_ids_BP.shape[1]
    tokens_B1 = prompt_ids_BP
    ids_B1 = position_ids_BS[:, :num_prompt_tokens]
    past = None
    tokens = []
    position_ids = []
    for place in range(num_prompt_tokens, num_prompt_tokens + num_tokens):
        hidden_BSD, read = model(tokens_B1, ids_B1, past)
        past = past.before(read) if past else read
        last_B1D = hidden_BSD[:, -1:]
        tokens_B1 = model.token_logits(last_B1D).argmax(-1)
        if predict_position_ids:
            ids_B1 = model.position_logits(last_B1D).argmax(-1)
        else:
            ids_B1 = position_ids_BS[:, place : place + 1]
        tokens.append(tokens_B1)
        position_ids.append(ids_B1)
    return torch.cat(tokens, dim=1), torch.cat(position_ids, dim=1)


class Answers(NamedTuple):
    """The responses, and which parts of them were right."""

    token_ids_BT: np.ndarray
    """int64; as the model gave them."""
    token_is_right_BT: np.ndarray
    """bool."""
    position_id_is_right_BT: np.ndarray
    """bool; true where IDs are given and not predicted."""

    @property
    def is_right_B(self) -> np.ndarray:
        """Whether the whole response is right: every token and every ID."""
        return (self.token_is_right_BT & self.position_id_is_right_BT).all(1)


def answers(
    model: TaskModel,
    batch: ExampleBatch,
    config: TaskConfig,
    generator: np.random.Generator,
    examples_per_batch: int,
) -> Answers:
    """Let a model that was trained with `config` answer; `generator` draws random starts."""
    num_prompt_tokens = batch.num_prompt_tokens
    predicts = config.positions == "predicted"
    token_ids_BS = torch.from_numpy(batch.token_ids_BS).to(model.device)
    position_ids = config.position_ids(batch, generator, in_testing=True)
    position_ids_BS = torch.from_numpy(position_ids).to(model.device)
    num_tokens = token_ids_BS.shape[1] - num_prompt_tokens
    given = (token_ids_BS[:, :num_prompt_tokens], position_ids_BS)
    generated = [
        generate(model, *parts, num_tokens=num_tokens, predict_position_ids=predicts)
        for parts in zip(*(of_all.split(examples_per_batch) for of_all in given), strict=True)
    ]
    tokens_BT, ids_BT = (torch.cat(of_all) for of_all in zip(*generated, strict=True))
    return Answers(
        tokens_BT.cpu().numpy(),
        (tokens_BT == token_ids_BS[:, num_prompt_tokens:]).cpu().numpy(),
        (ids_BT == position_ids_BS[:, num_prompt_tokens:]).cpu().numpy(),
    )


@torch.inference_mode()
def excess_losses(
    model: TaskModel,
    batch: ExampleBatch,
    config: TaskConfig,
    generator: np.random.Generator,
    examples_per_batch: int,
) -> np.ndarray:
    """Loss of responses of one token beyond the best possible one: float64 [B], nats.

    It is KL(posterior || model): the mean over what the answer could have been, with these cues. So it is
    less noisy than the loss of the answer that was drawn less the best loss, and has the same mean.
    """
    assert batch.log_posterior_BV is not None
    position_ids_BS = torch.from_numpy(config.position_ids(batch, generator, in_testing=True))
    log_posterior_BV = torch.from_numpy(batch.log_posterior_BV)
    excess = []
    parts = (
        part.to(model.device).split(examples_per_batch)
        for part in (torch.from_numpy(batch.token_ids_BS), position_ids_BS, log_posterior_BV)
    )
    for tokens_BS, ids_BS, log_p_BV in zip(*parts, strict=True):
        hidden_BSD, _ = model(tokens_BS[:, :-1], ids_BS[:, :-1])
        log_q_BV = model.token_logits(hidden_BSD[:, -1]).double().log_softmax(-1)
        is_possible = log_p_BV.isfinite()
        terms_BV = log_p_BV.exp() * torch.where(is_possible, log_p_BV - log_q_BV, 0.0)
        excess.append(terms_BV.sum(-1))
    return torch.cat(excess).cpu().numpy()


_EXAMPLES_PER_BATCH = 100
"""Examples that are generated together."""


def accuracy_tables(
    model: TaskModel, batch: ExampleBatch, config: TaskConfig, generator: np.random.Generator
) -> tuple[dict[str, dict[str, list[Any]]], Interval]:
    """Columns of `synthetic_accuracy`, one row, and of `synthetic_examples`; the share of exact matches."""
    found = answers(model, batch, config, generator, _EXAMPLES_PER_BATCH)
    exact = wilson_interval(int(found.is_right_B.sum()), len(found.is_right_B))
    task = task_called(config.task)
    num_examples = len(batch.examples)
    of_examples: dict[str, list[Any]] = {
        "example_index": list(range(num_examples)),
        "is_right": found.is_right_B.tolist(),
        "answer": [task.vocabulary[token_id] for token_id in found.token_ids_BT[:, 0]],
        "decisive_tokens": [None] * num_examples,
        "distances": [None] * num_examples,
        "excess_loss": [None] * num_examples,
    }
    if task.has_sparsity:
        of_examples["decisive_tokens"] = [
            " ".join(task.vocabulary[example.token_ids_S[place]] for place in example.dependencies[0])
            for example in batch.examples
        ]
    row: dict[str, Any] = {
        "num_tokens": batch.token_ids_BS.shape[1],
        "num_examples": num_examples,
        "exact_match": exact.estimate,
        "exact_match_low": exact.low,
        "exact_match_high": exact.high,
        "token_accuracy": float(found.token_is_right_BT.mean()),
        "position_id_accuracy": None,
    }
    if config.positions == "predicted":
        row["position_id_accuracy"] = float(found.position_id_is_right_BT.mean())
    if batch.log_posterior_BV is not None:  # the best possible loss is known
        excess_B = excess_losses(model, batch, config, generator, _EXAMPLES_PER_BATCH)
        of_examples["excess_loss"] = excess_B.tolist()
        question = batch.num_prompt_tokens - 1
        of_examples["distances"] = [
            [question - place for place in example.dependencies[0]] for example in batch.examples
        ]
        row |= {
            "excess_loss": float(excess_B.mean()),
            "excess_loss_error": float(excess_B.std() / len(excess_B) ** 0.5),
            "attention_scaling": config.model.attention_scaling,
            "best_loss": BEST_LOSS_OF_CUES,
        }
    of_cell = {name: [value] for name, value in row.items()}
    return {"synthetic_accuracy": of_cell, "synthetic_examples": of_examples}, exact
