"""How well a task model answers test examples, and whether rules find the tokens that decide its answers.

Answers are generated freely: every token, and with PPC every position ID, is the model's own. Dependencies
are looked for as influential_tokens.py looks for them in text; the task's generator knows the true ones. What
of a dependency set lies in the short context needs no selection, so finding is about the rest: the set's
places in the distant context.

Dimension letters: B examples, or swaps; P tokens of a prompt, T of a response, S = P + T = L tokens of an
example, K largest k, V vocabulary.
"""

from collections.abc import Collection

import numpy as np
import pandas as pd
import torch
from scipy.stats import binomtest

from sparsity_length.cli import InputError
from sparsity_length.measuring.contexts import Batching
from sparsity_length.measuring.far_context import FarContext
from sparsity_length.measuring.rules import ABLATIONS, MASK, RULES, SWAP, find_rule
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.synthetic.models import TaskLM
from sparsity_length.synthetic.tasks import BEST_LOSS_OF_CUES, TASKS, Example


@torch.inference_mode()
def generate(
    model: TaskLM, prompt_ids_BP: torch.Tensor, position_ids_BS: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token at every place of the response, each read back before the next.

    The prompt is read once; then each pass reads one token of every sequence, whose key is rotated by the ID
    that it was given or that was predicted for it. With predicted positions the response's IDs are the
    likeliest ones, read back too, and those given are ignored.

    Returns:
        Logits [B, T, V] and position IDs [B, T] of the response's tokens.
    """
    num_prompt_tokens = prompt_ids_BP.shape[1]
    tokens_B1 = prompt_ids_BP
    ids_B1 = position_ids_BS[:, :num_prompt_tokens]
    past = None
    logits = []
    position_ids = []
    for place in range(num_prompt_tokens, position_ids_BS.shape[1]):
        hidden_BSD, past = model._run(tokens_B1, ids_B1, None, None, past, keeps_rows=True)
        last_B1D = hidden_BSD[:, -1:]
        logits.append(model.logits(last_B1D))
        # The likeliest and no draw, so that a model's accuracy is one number.
        tokens_B1 = logits[-1].argmax(-1)
        ids_B1 = (
            model.position_logits(last_B1D).argmax(-1)
            if model.config.positions == "predicted"
            else position_ids_BS[:, place : place + 1]
        )
        position_ids.append(ids_B1)
    return torch.cat(logits, dim=1), torch.cat(position_ids, dim=1)


def accuracy(
    model: TaskLM,
    examples: list[Example],
    generator: np.random.Generator,
    examples_per_batch: int = 100,
) -> dict[str, pd.DataFrame]:
    """How a model answers; `generator` draws random starts.

    Excess loss is KL(posterior || model), the mean over all answers that are possible with these cues. It has
    the mean of (loss of the drawn answer - best loss), and is less noisy.

    Returns:
        The columns of `synthetic_accuracy`, one row, and those of `synthetic_examples`, one row per example.
    """
    config = model.config
    first = examples[0].num_prompt_tokens  # of the response
    token_ids_BS, position_ids_BS = map(torch.from_numpy, config.ids_of(examples, generator, in_testing=True))
    logits = []
    ids = []
    for start in range(0, len(examples), examples_per_batch):
        batch = slice(start, start + examples_per_batch)
        prompts_BP = token_ids_BS[batch, :first].to(model.device)
        of_batch = generate(model, prompts_BP, position_ids_BS[batch].to(model.device))
        logits.append(of_batch[0].cpu())
        ids.append(of_batch[1].cpu())
    logits_BTV = torch.cat(logits)
    ids_BT = torch.cat(ids)
    tokens_BT = logits_BTV.argmax(-1)
    token_is_right_BT = (tokens_BT == token_ids_BS[:, first:]).numpy()
    id_is_right_BT = (ids_BT == position_ids_BS[:, first:]).numpy()  # always, where IDs are given
    is_right_B = (token_is_right_BT & id_is_right_BT).all(1)
    # Wilson's interval (1927, JASA 22), which has a width at 0 and 1 too.
    exact = binomtest(int(is_right_B.sum()), len(examples)).proportion_ci(method="wilson")
    row = {
        "num_tokens": token_ids_BS.shape[1],
        "num_examples": len(examples),
        "exact_match": float(is_right_B.mean()),
        "exact_match_low": float(exact.low),
        "exact_match_high": float(exact.high),
        "token_accuracy": float(token_is_right_BT.mean()),
        "position_id_accuracy": float(id_is_right_BT.mean()) if config.positions == "predicted" else None,
    }
    vocabulary = TASKS[config.task].vocabulary
    decisive = [example.dependencies[0] for example in examples]
    table = pd.DataFrame(
        {
            "example_index": range(len(examples)),
            "is_right": is_right_B,
            "answer": [vocabulary[token_id] for token_id in tokens_BT[:, 0]],
            "decisive_tokens": [
                " ".join(vocabulary[token_id] for token_id in example.token_ids_S[list(places)])
                for example, places in zip(examples, decisive, strict=True)
            ],
            "distances": [[first - 1 - place for place in places] for places in decisive],
        }
    )
    if examples[0].log_posterior_V is not None:
        log_p_BV = torch.tensor(np.array([example.log_posterior_V for example in examples]))
        # Doubles, as KL is a small difference of large logarithms once the task is learned.
        log_q_BV = logits_BTV[:, 0].double().log_softmax(-1)
        # What cannot be the answer adds nothing, where 0 times an infinite logarithm would be no number.
        terms_BV = log_p_BV.exp() * torch.where(log_p_BV.isfinite(), log_p_BV - log_q_BV, 0.0)
        excess_losses_B = terms_BV.sum(-1).numpy()
        table["excess_loss"] = excess_losses_B
        row |= {
            "excess_loss": float(excess_losses_B.mean()),
            "excess_loss_error": float(excess_losses_B.std() / len(examples) ** 0.5),
            "best_loss": BEST_LOSS_OF_CUES,
        }
    return {"synthetic_accuracy": pd.DataFrame([row]), "synthetic_examples": table}


def found_dependencies(
    model: TaskLM,
    examples: list[Example],
    generator: np.random.Generator,
    rules: Collection[str],
    largest_k: int,
) -> dict[str, pd.DataFrame]:
    """Which tokens rules select, under each ablation that they know: columns of `found_dependencies`.

    One row per target, rule and rank, up to `largest_k` or, if more tokens truly decide, to their number:
    there precision and recall are equal. InputError if none is to be found.

    An example is one chunk, whose last tokens are the targets; their short context, two tokens, is seen
    anyway. Under `swap` other examples' tokens stand in the place of what is left out, and measurements are
    means over all of them: if a place has few values, one is often the token that stands there, and says
    nothing.

    Call order:
        ids_of              tokens and position IDs of all examples
        TaskLM.at           for each example the model at its position IDs
        FarContext          one per ablation; nothing is measured yet
        Rule.rank           measures what the rule asks for, and ranks the distant tokens of all targets
    """
    if len(examples) < 2:
        raise InputError("other examples' tokens stand in: two examples or more are needed (--num-examples)")
    token_ids_BS, position_ids_BS = model.config.ids_of(examples, generator, in_testing=True)
    num_tokens = token_ids_BS.shape[1]
    lengths = ContextLengths(
        short_context_length=2,
        long_context_length=num_tokens,
        targets_per_chunk=num_tokens - examples[0].num_prompt_tokens,
    )
    num_far_T = lengths.num_far_tokens_T.tolist()
    vocabulary = TASKS[model.config.task].vocabulary
    # In the order of all rules, as the random one draws from the generator of the swaps.
    searches = [
        (rule.name, ablation)
        for rule in RULES.values()
        for ablation in (ABLATIONS if rule.knows_ablations else (None,))
        if rule.name in rules
    ]
    rows = []
    for index, example in enumerate(examples):
        others = generator.integers(0, len(examples) - 1, 8)
        swaps_BL = token_ids_BS[others + (others >= index)]
        placed = model.at(torch.from_numpy(position_ids_BS[index]))
        # Large passes, as models are small.
        chunk = (placed, lengths, Batching(8192), example.token_ids_S, example.token_ids_S)
        contexts = {
            MASK: FarContext(*chunk, seed=generator),
            SWAP: FarContext(*chunk, search_swaps_BL=swaps_BL, seed=generator),
        }
        # Every target must fill every rank, and the first one has the fewest distant tokens.
        max_k = min(max(largest_k, *map(len, example.dependencies)), num_far_T[0])
        for rule, ablation in searches:
            context = contexts[ablation or MASK]
            positions_TK = find_rule(rule).rank(context, max_k)
            for target, num_far in enumerate(num_far_T):
                true_places = {place for place in example.dependencies[target] if place < num_far}
                # Nothing is to be found for a target that only the short context decides.
                for rank, place in enumerate(positions_TK[target].tolist() if true_places else (), start=1):
                    rows.append(
                        {
                            "example_index": index,
                            "target_index": target,
                            "num_distant_tokens": num_far,
                            "num_dependencies": len(true_places),
                            "long_context_loss": context.long_losses_T[target],
                            "rule": rule,
                            "ablation": ablation,
                            "rank": rank,
                            "context_position": place,
                            "is_dependency": place in true_places,
                            "context_token": vocabulary[example.token_ids_S[place]],
                        }
                    )
    # As objects, for pandas makes NaN of the None of rules without an ablation.
    if not rows:
        raise InputError(
            f"no distant token decides an answer in examples of {num_tokens} tokens; choose larger --sizes"
        )
    return {"found_dependencies": pd.DataFrame(rows, dtype=object)}
