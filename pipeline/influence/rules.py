"""Selection rules: which k tokens of the far context are called influential.

A rule ranks the far context of every target; S_k is its first k, so the S_k are nested. The paper selects
by its Eq. 20, whose text is not among our sources; `leave_one_out` is our reading of it, and results say
which rule was used.

Shapes: T targets, F far-context positions (of the last target), K the largest k.
"""

from collections.abc import Callable

import numpy as np

from pipeline.errors import unknown_name

Rule = Callable[[np.ndarray, np.ndarray, int, np.random.Generator], np.ndarray]


def leave_one_out(
    influence_TF: np.ndarray, num_far_tokens_T: np.ndarray, max_k: int, generator: np.random.Generator
) -> np.ndarray:
    """The tokens whose removal raises the target's loss most; ties go to the nearer token.

    It looks at the target, so it needs the null beside it (design.md 1). Cost: no more than the
    influences it is given. See `RULES` for the arguments.
    """
    return _ranked(np.nan_to_num(influence_TF, nan=-np.inf), max_k)


def nearest(
    influence_TF: np.ndarray, num_far_tokens_T: np.ndarray, max_k: int, generator: np.random.Generator
) -> np.ndarray:
    """Control: the tokens right before the short context. Cost: none. See `RULES` for the arguments."""
    return num_far_tokens_T[:, None] - 1 - np.arange(max_k)


def random(
    influence_TF: np.ndarray, num_far_tokens_T: np.ndarray, max_k: int, generator: np.random.Generator
) -> np.ndarray:
    """Control: tokens drawn uniformly without replacement. Cost: none. See `RULES` for the arguments."""
    draws_TF = generator.random(influence_TF.shape)
    is_far_TF = np.arange(influence_TF.shape[1]) < num_far_tokens_T[:, None]
    return _ranked(np.where(is_far_TF, draws_TF, -np.inf), max_k)


def _ranked(scores_TF: np.ndarray, max_k: int) -> np.ndarray:
    """Positions of the `max_k` largest scores, largest first, the nearer of equals first: int64 [T, K]."""
    # A stable sort keeps the order of equals, so sorting from the nearest token on breaks ties rightly.
    nearest_first_TF = scores_TF[:, ::-1]
    order_TK = np.argsort(-nearest_first_TF, axis=1, kind="stable")[:, :max_k]
    return scores_TF.shape[1] - 1 - order_TK


RULES: dict[str, Rule] = {"leave_one_out": leave_one_out, "random": random, "nearest": nearest}
"""name -> rule(influence_TF, num_far_tokens_T, max_k, generator) -> positions_TK.

influence_TF: float32 [T, F], nats, NaN beyond a target's far context. num_far_tokens_T: int64 [T]; position
p is far context of target t where p < num_far_tokens_T[t]; every entry is at least max_k. generator: of the
rules that draw. positions_TK: int64 [T, K], most influential first, no position twice.
"""


def find_rule(name: str) -> Rule:
    """The rule called `name`.

    Raises:
        InputError: there is none; names the nearest.
    """
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    return RULES[name]
