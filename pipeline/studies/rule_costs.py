"""What each selection rule costs, in token-forwards: the formulas of pipeline/influence/rules.py.

They count the own far context of one chunk; the null's sequences hold other numbers of rows. What all rules
share (the long, short and sparse-context losses) is not in them. A test counts what really runs.

Words: s short context, l long context (chunk), m targets a chunk, n = l - 1 tokens before the last target,
F far-context tokens of a target.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from pipeline.errors import unknown_name
from pipeline.influence.rules import BACKGROUND, NUM_SUBSETS, REMOVE, RULES, SUBSTITUTE, studied_numbers

_GREEDY = ("greedy", "greedy_divergence")
_ADDING = ("add_one_in", "add_one_in_divergence", *_GREEDY)
"""Of these the far tokens alone are read once, and the first round is shared."""


def _kind(rule: str) -> str:
    """Rules of one kind share all their passes: a search by either criterion."""
    return rule if rule == "gradient_divergence" else rule.removesuffix("_divergence")


@dataclass(frozen=True)
class RuleCosts:
    """Costs under given lengths, all in tokens."""

    short_context_length: int
    long_context_length: int
    targets_per_chunk: int
    search_budget: float | None = None
    """Of the rule leave_one_out_search, which spends it; None: that rule was not run."""
    intervention: str = REMOVE
    num_backgrounds: int = 1
    """Foreign documents, under the intervention `background`."""
    num_subsets: int = NUM_SUBSETS
    """Of the rules banzhaf* and surrogate*."""
    num_sampled_answers: int = 8
    """Of the rule gradient_divergence."""
    num_integration_steps: int = 20
    """Of the rule integrated_gradients."""
    num_candidates: int | None = None
    """Tokens that each step of add_one_in* and greedy* tries, those that a screen puts first; None: all."""

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
        if rule not in (*RULES, "exhaustive"):
            raise unknown_name("rule", rule, (*RULES, "exhaustive"))
        of_kind = {
            "leave_one_out": self._leave_one_out(),
            "leave_one_out_search": round((self.search_budget or 0) * self.one_removal_a_pass()),
            "add_one_in": self._add_one_in(),
            "greedy": self._greedy(k),
            "banzhaf": self._subsets(),
            "gradient": self._num_before,
            "gradient_divergence": self.num_sampled_answers * self._num_before,
            "attention": self._num_before,
            "context_length_probing": self._context_length_probing(),
            "surrogate": self._subsets(),
            "input_x_gradient": self.targets_per_chunk * self._num_before,
            "integrated_gradients": (self.num_integration_steps * self.targets_per_chunk * self._num_before),
            "attention_rollout": self._num_before,
            "learned_attention": self._num_before,
            "random": 0,
            "nearest": 0,
            "exhaustive": self._exhaustive(k),
        }
        return of_kind[_kind(rule)]

    def token_forwards_together(self, rules: Collection[str], k: int) -> int:
        """Of several rules at once: those of a kind share all their passes.

        The first round of the greedy rules is add_one_in's: of either criterion, or where a screen by it says
        which tokens are tried, of the same one.
        """
        kinds = {_kind(rule): rule for rule in rules if rule not in _ADDING}
        shared = sum(self.token_forwards(rule, k) for rule in kinds.values())
        adding = [rule for rule in rules if rule in _ADDING]
        if not adding:
            return shared
        criteria = {rule.endswith("_divergence") for rule in adding}
        further_criteria = 0 if self.num_candidates is None else len(criteria) - 1
        num_greedy = sum(rule in _GREEDY for rule in adding)
        further_rounds = num_greedy * sum(map(self._round, range(2, k + 1)))
        return shared + self._add_one_in() + further_criteria * self._round(1) + further_rounds

    def backward_tokens_per_target(self, rule: str, k: int) -> int:
        """Tokens that backward passes run through to choose the first k tokens, a target."""
        if rule in _ADDING:
            return sum(map(self._rows_of_screen, range(1, k + 1 if rule in _GREEDY else 2)))
        passes = {
            "gradient": 1,
            "gradient_divergence": self.num_sampled_answers,
            "input_x_gradient": 1,
            "integrated_gradients": self.num_integration_steps,
        }
        return passes.get(rule, 0) * self._num_before

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

    def foreign_context(self) -> int:
        """All targets in a foreign far context, which is read once for each of the packed sequences."""
        return sum(rows for rows, _ in self._packed_sequences())

    def sparse_contexts(self, rules: Collection[str], ks: Sequence[int]) -> int:
        """Every studied number of tokens of every rule: beside the short context, or in each background.

        A background is read once up to the last far token, and for each set again from its first token on:
        of k tokens spread evenly about the (F - k) / (k + 1)-th, of the nearest ones the (F - k)-th.
        """
        fewest, short = self.num_far_tokens[0], self.short_context_length
        numbers = [(rule, k) for rule in rules for k in studied_numbers(rule, ks, fewest)]
        if self.intervention != BACKGROUND:
            return self.targets_per_chunk * sum(short + k for _, k in numbers)
        again = sum(
            short + k if rule == "nearest" else short + num_far - (num_far - k) / (k + 1)
            for rule, k in numbers
            for num_far in self.num_far_tokens
        )
        return self.num_backgrounds * (self.num_far_tokens[-1] + round(again))

    def _leave_one_out(self) -> int:
        """Under `background` a token is replaced by each foreign document's in turn."""
        if self.intervention != BACKGROUND:
            return self.one_removal_a_pass(substitute=self.intervention == SUBSTITUTE)
        replacements = self.one_removal_a_pass(substitute=True) - self._num_before
        return self._num_before + self.num_backgrounds * replacements

    def _add_one_in(self) -> int:
        """Under `background` a token is restored in a foreign far context, one pass for all targets."""
        if self.intervention != BACKGROUND:
            return self._greedy(1)
        restored = sum(rows + sum(rows - i for i in range(far)) for rows, far in self._packed_sequences())
        return self.num_backgrounds * restored

    def _subsets(self) -> int:
        """A pass a subset over the packed sequences; under `background` a foreign document."""
        num_rows = self.foreign_context()
        of_each = self.num_backgrounds if self.intervention == BACKGROUND else 1
        return of_each * self.num_subsets * num_rows

    def _context_length_probing(self) -> int:
        """A pass from each start on, but the first and the last; a background is read before."""
        last = self.num_far_tokens[-1]
        from_each_start = sum(self._num_before - start for start in range(1, last))
        if self.intervention != BACKGROUND:
            return from_each_start
        return self.num_backgrounds * (max(0, last - 1) + from_each_start)

    def _packed_sequences(self) -> list[tuple[int, int]]:
        """Rows and far rows of each of the null's sequences, whose windows take about as many rows as it."""
        short, num_targets = self.short_context_length, self.targets_per_chunk
        asked = max(1, round(num_targets * short / self.num_far_tokens[-1]))
        parts = np.array_split(self.num_far_tokens, min(asked, num_targets))
        return [(int(part[-1]) + short * len(part), int(part[-1])) for part in parts]

    def _greedy(self, k: int) -> int:
        """The far tokens alone, once, and k rounds."""
        return self.num_far_tokens[-1] + sum(map(self._round, range(1, k + 1)))

    def _round(self, j: int) -> int:
        """Every candidate beside s + j - 1 tokens, and the screen: the first of them is looked up."""
        tried = [num_far - j + 1 for num_far in self.num_far_tokens]
        if self.num_candidates is not None:
            tried = [min(number, self.num_candidates) for number in tried]
        screen = self.targets_per_chunk * self._rows_of_screen(j)
        return screen + sum(tried) * (self.short_context_length + j - 1)

    def _rows_of_screen(self, j: int) -> int:
        """Of round j and one target: the context that tokens are added to; 0 where all are tried."""
        if self.num_candidates is None or self.num_far_tokens[-1] - j + 1 <= self.num_candidates:
            return 0
        return self.short_context_length + j - 1

    def _exhaustive(self, k: int) -> int:
        """Every subset of size k, beside the short context."""
        num_subsets = sum(comb(num_far, k) for num_far in self.num_far_tokens)
        return num_subsets * (self.short_context_length + k)
