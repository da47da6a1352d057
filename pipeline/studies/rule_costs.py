"""What each selection rule costs, in token-forwards: the formulas of pipeline/influence/rules.py.

They count the own far context of one chunk; the null's sequences hold other numbers of rows. What all rules
share (the long, short and sparse-context losses) is not in them. A test counts what really runs.

Words: s short context, l long context (chunk), m targets a chunk, n = l - 1 tokens before the last target,
F far-context tokens of a target.
"""

from collections.abc import Collection
from dataclasses import dataclass
from math import comb

from pipeline.errors import unknown_name

BACKWARD_RULES = ("gradient",)
"""Rules that also run one backward pass a target, through all n tokens."""
_SHARING = (
    ("leave_one_out", "divergence"), ("leave_one_out_search",), ("add_one_in", "greedy"),
    ("gradient", "attention"), ("random", "nearest"),
)  # fmt: skip


@dataclass(frozen=True)
class RuleCosts:
    """Costs under given lengths, all in tokens."""

    short_context_length: int
    long_context_length: int
    targets_per_chunk: int
    search_budget: float | None = None
    """Of the rule leave_one_out_search, which spends it; None: that rule was not run."""

    def token_forwards_per_target(self, rule: str, k: int) -> float:
        """Tokens run through the network to choose the first k tokens, a target.

        Raises:
            InputError: there is no rule of this name.
        """
        return self.token_forwards(rule, k) / self.targets_per_chunk

    def token_forwards(self, rule: str, k: int) -> int:
        """The same for all targets of a chunk together.

        Raises:
            InputError: there is no rule of this name.
        """
        of_rule = {
            "leave_one_out": self.one_removal_a_pass(),
            "leave_one_out_search": round((self.search_budget or 0) * self.one_removal_a_pass()),
            "divergence": self.one_removal_a_pass(),
            "add_one_in": self._greedy(1),
            "greedy": self._greedy(k),
            "gradient": self._num_before,
            "attention": self._num_before,
            "random": 0,
            "nearest": 0,
            "exhaustive": self._exhaustive(k),
        }
        if rule not in of_rule:
            raise unknown_name("rule", rule, of_rule)
        return of_rule[rule]

    def token_forwards_together(self, rules: Collection[str], k: int) -> int:
        """Of several rules at once, at most: those of a kind share their passes, so the dearest decides."""
        return sum(
            max((self.token_forwards(rule, k) for rule in kind if rule in rules), default=0)
            for kind in _SHARING
        )

    def backward_tokens_per_target(self, rule: str) -> int:
        """Tokens that a backward pass runs through, a target."""
        return self._num_before if rule in BACKWARD_RULES else 0

    @property
    def num_far_tokens(self) -> range:
        """F of each target of a chunk."""
        num_short_of_last = self.long_context_length - self.short_context_length
        return range(num_short_of_last - self.targets_per_chunk, num_short_of_last)

    @property
    def _num_before(self) -> int:
        return self.long_context_length - 1

    def one_removal_a_pass(self, *, substitute: bool = False) -> int:
        """n, then the n - 1 - i tokens after removal i of the F of the last target, each anew.

        Removals that run together run up to an eighth more. A substitution runs one token more.
        """
        num_far = self.num_far_tokens[-1]
        after_removals = sum(self._num_before - 1 - i for i in range(num_far))
        return self._num_before + after_removals + (num_far if substitute else 0)

    def _greedy(self, k: int) -> int:
        """In round j every far token not yet chosen, beside s + j - 1 others."""
        return sum(
            (num_far - j + 1) * (self.short_context_length + j)
            for num_far in self.num_far_tokens
            for j in range(1, k + 1)
        )

    def _exhaustive(self, k: int) -> int:
        """Every subset of size k, beside the short context."""
        num_subsets = sum(comb(num_far, k) for num_far in self.num_far_tokens)
        return num_subsets * (self.short_context_length + k)
