"""Selection rules: which far tokens are called influential.

A rule ranks the far context of every target; S_k is its first k, so the S_k are nested. It is a search and a
criterion: the target's loss (the plain name), which sees the answer, or how far the whole prediction is from
that of the long context (the name with `_divergence`), which does not. A choice of few tokens among hundreds
carries more information than the effect that it is to explain, so every search nearly reaches what it
optimises; its null says how nearly, and only the excess is an effect. The paper selects by its Eq. 20, whose
text is not among our sources; `leave_one_out` is our reading of it, and results say which rule was used.

A rule is a function, `scores(far) -> [T, F]`, the largest first. The decorator `rule` registers it under its
name and says what it looks at, from which follows the null that it needs. A new one stands in one of these
files, or in a file of its own that is imported below; a user's own in any file that is given as --rule-file
(analysis/examples/kv_cache_rules.py).

No torch here: a --help and a refusal are quick.

Shapes: T targets, F far-context positions (of the last target), K the largest k.
"""

import importlib.util
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from pipeline.cli import InputError, unknown_name
from pipeline.measuring.flags import BLOCKS, FEWEST_BLOCKS, LONGEST_EXACT, ContextLengths
from pipeline.results.schemas import MIMICRY, SELECTION

if TYPE_CHECKING:
    from pipeline.measuring.far_context import FarContext

REMOVE = "remove"
BACKGROUND = "background"
INTERVENTIONS = (REMOVE, BACKGROUND)
"""What becomes of a token that is left out: nothing is there; or another document's token is, in the place of
the whole far context but for S_k."""
DEFAULT_INTERVENTION = BACKGROUND
CONTROLS = ("random", "nearest")
DEFAULT_RULES = ("leave_one_out_divergence", "leave_one_out", *CONTROLS)
"""First the best one of the trial of the measures, within `DEFAULT_INTERVENTION` (analysis/LOG.md)."""
DEFAULT_KS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of influential tokens studied where nothing else is asked for, as far as the far context goes."""
LEAVE_ONE_OUT_RULES = ("leave_one_out", "leave_one_out_divergence")
"""Rules that leave each token out in turn."""

Sees = Literal["answer", "prediction", "attention", "nothing"]
Ranking = Callable[[Sequence["FarContext"], int, np.random.Generator], np.ndarray]
"""(one far context as each chooser reads it, K, generator of the rules that draw) -> the first K tokens,
most influential first, no position twice: int64 [T, K]; every target's far context holds K."""
Scores = Callable[["FarContext"], np.ndarray]
"""Far context -> a score for each target and far token: [T, F], NaN where a token is none of the target's."""


@dataclass(frozen=True)
class Rule:
    """A search, its criterion, and what that means for the null."""

    name: str
    sees: Sees
    """Of the target: its loss; the model's whole prediction of it; where its query looks; nothing."""
    ranking: Ranking
    interventions: tuple[str, ...] = (REMOVE, BACKGROUND)
    """Those that it can be asked for under."""
    reads_everything: bool = False
    """Whether it leaves nothing out, but looks at the long context as it is."""
    builds_up: bool = False
    """Whether it looks for tokens that together give the prediction, instead of those that it misses."""

    @property
    def knows_interventions(self) -> bool:
        """Whether what it chooses depends on what stands in the place of other tokens."""
        return len(self.interventions) > 1 and self.sees != "nothing" and not self.reads_everything

    @property
    def null(self) -> str:
        """The kind of null that fits it: another document's tokens at the same positions, either way.

        MIMICRY where it fits the prediction: these tokens are chosen to reproduce *this* document's.
        Otherwise SELECTION: as in the own far context, within the other document's.
        """
        return MIMICRY if self.builds_up and self.sees == "prediction" else SELECTION

    @property
    def needs_null(self) -> bool:
        """Whether what it recovers says nothing without its null: it fits the answer, or the prediction.

        Where it does not, foreign tokens are as likely to hurt, and the excess over them would flatter it.
        """
        return self.sees == "answer" or self.null == MIMICRY

    @property
    def says_something_alone(self) -> bool:
        """Whether it is measured where a document has no null: it is no control, and needs none."""
        return self.name not in CONTROLS and not self.needs_null


RULES: dict[str, Rule] = {}
"""Name -> rule, in the order in which they were registered."""


def ranking_rule(
    sees: Sees, *, interventions: tuple[str, ...] = INTERVENTIONS, reads_everything: bool = False,
    builds_up: bool = False,
) -> Callable[[Ranking], Ranking]:  # fmt: skip
    """Register a function that ranks by itself, as a search in rounds does; see `Rule` for the arguments."""

    def register(ranking: Ranking) -> Ranking:
        name = ranking.__name__
        if name in RULES:
            raise InputError(f"there is a rule '{name}' already; rename yours")
        RULES[name] = Rule(name, sees, ranking, interventions, reads_everything, builds_up)
        return ranking

    return register


def rule(
    sees: Sees, *, interventions: tuple[str, ...] = INTERVENTIONS, reads_everything: bool = False,
    builds_up: bool = False,
) -> Callable[[Scores], Scores]:  # fmt: skip
    """Register a function of a far context that scores its tokens; see `Rule` for the arguments.

    If several models choose together, the mean of their scores ranks. Scores of tokens that are not far
    context of a target are ignored.
    """

    def register(scores: Scores) -> Scores:
        def ranking(
            contexts: Sequence["FarContext"], max_k: int, generator: np.random.Generator
        ) -> np.ndarray:
            num_far_T = contexts[0].num_far_tokens_T
            of_models = [np.asarray(scores(context)) for context in contexts]
            expected = len(num_far_T), int(num_far_T[-1])
            if of_models[0].shape != expected:
                raise InputError(
                    f"rule '{scores.__name__}' returns scores of shape {of_models[0].shape}; {expected} is"
                    " needed, targets by far tokens"
                )
            is_far_TF = np.arange(expected[1]) < num_far_T[:, None]
            return ranked(np.where(is_far_TF, np.mean(of_models, axis=0), np.nan), max_k)

        ranking.__name__ = scores.__name__
        ranking_rule(
            sees, interventions=interventions, reads_everything=reads_everything, builds_up=builds_up
        )(ranking)
        return scores

    return register


_loaded_files: set[Path] = set()


def load_rule_file(path: Path) -> None:
    """Run a Python file that registers rules; once, however often it is asked for."""
    path = path.resolve()
    if path in _loaded_files:
        return
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"--rule-file {path} is no Python file; its name must end in .py")
    known = set(RULES)
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except Exception as error:
        for name in RULES.keys() - known:  # a mended file may register them again
            del RULES[name]
        raise InputError(f"--rule-file {path} fails: {type(error).__name__}: {error}") from error
    if RULES.keys() == known:
        raise InputError(f"--rule-file {path} registers no rule; decorate a function with @rule(...)")
    _loaded_files.add(path)


def ranked(scores_TF: np.ndarray, max_k: int) -> np.ndarray:
    """Positions of the `max_k` largest scores, largest first, the nearer of equals first: int64 [T, K].

    NaN is no candidate.
    """
    # A stable sort keeps the order of equals, so sorting from the nearest token on breaks ties rightly.
    nearest_first_TF = np.where(np.isnan(scores_TF), -np.inf, scores_TF)[:, ::-1]
    order_TK = np.argsort(-nearest_first_TF, axis=1, kind="stable")[:, :max_k]
    return scores_TF.shape[1] - 1 - order_TK


def find_rule(name: str) -> Rule:
    """The rule called `name`; InputError where there is none."""
    if name not in RULES:
        raise unknown_name("rule", name, RULES)
    return RULES[name]


def selected_positions(
    far_context: "FarContext", rule: str, max_k: int, seed: Sequence[int],
    other_choosers: Sequence["FarContext"] = (),
) -> np.ndarray:  # fmt: skip
    """The `max_k` tokens that `rule` ranks first, most influential first: int64 [T, K].

    The same seed draws the same positions in the own far context and in its null.

    Args:
        other_choosers: the same far context as other models read it; the mean of all their scores ranks.
    """
    return find_rule(rule).ranking([far_context, *other_choosers], max_k, np.random.default_rng(seed))


def studied_numbers(
    rule: str, ks: Sequence[int], smallest_far_context: int, screen: int | None = None
) -> list[int]:
    """The numbers of tokens that a rule is studied at: those asked for, ascending.

    Of the controls, whose order costs nothing, also every power of two up to the whole far context, to tell
    how many of the nearest tokens do what a few chosen ones do. Of screened rules too: their far context is
    long, and what lies between the largest number asked for and all of it would not be known.
    """
    if rule not in CONTROLS and (screen is None or rule not in LEAVE_ONE_OUT_RULES):
        return sorted(set(ks))
    powers = {1 << exponent for exponent in range(smallest_far_context.bit_length())}
    return sorted({*ks, *powers, smallest_far_context})


def screen_of(lengths: ContextLengths, num_blocks: int | None, rules: Collection[str]) -> int | None:
    """How many blocks a round leaves out for these rules, given --screen; None: every token, or nothing."""
    if num_blocks is not None and num_blocks < FEWEST_BLOCKS:
        raise InputError(f"--screen {num_blocks} is too few: give {FEWEST_BLOCKS} blocks at least")
    if num_blocks is None and lengths.long_context_length > LONGEST_EXACT:
        num_blocks = BLOCKS + lengths.num_targets
    leaves_out = any(rule in LEAVE_ONE_OUT_RULES for rule in rules)
    is_whole = num_blocks is None or num_blocks >= lengths.num_far_tokens_T[0]
    return num_blocks if leaves_out and not is_whole else None


def refuse_rules(
    rules: Collection[str], *, intervention: str, largest_k: int, smallest_far_context: int
) -> None:  # fmt: skip
    """Refuse what cannot be asked for together, in the words of the flags (InputError)."""
    for rule in map(find_rule, rules):
        if intervention == BACKGROUND and BACKGROUND not in rule.interventions:
            able = ", ".join(name for name, one in RULES.items() if BACKGROUND in one.interventions)
            raise InputError(
                f"--intervention background has no meaning for rule {rule.name}; it is for {able}; choose of"
                " these, or say --intervention remove"
            )
    if largest_k > smallest_far_context:
        raise InputError(
            f"--k {largest_k} is more than the {smallest_far_context} far-context tokens of the first target:"
            " choose a smaller k, a longer long context or fewer targets a chunk"
        )


# Below all that they use, and in the order of the rules in --help and in tables.
from pipeline.measuring.rules import leaving_out, adding, gradients, attention, controls  # noqa: E402, F401, I001
