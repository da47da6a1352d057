"""The settings of influential_tokens and evaluate_tokens: which tokens are chosen, how, and where tried."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsity_length.cli import (
    InputError,
    finite_float,
    folder_path,
    positive_fraction,
    positive_int,
    random_seed,
    whole_number,
)
from sparsity_length.measuring.rules import (
    ABLATIONS,
    CONTROLS,
    DEFAULT_ABLATION,
    DEFAULT_KS,
    DEFAULT_RULES,
    LEAVE_ONE_OUT_RULES,
    RULES,
    SEARCH_SWAPS,
    SWAP,
    TRIAL_SWAPS,
    find_rule,
)
from sparsity_length.measuring.settings import LONGEST_EXACT, MINIMUM_GAIN, SHORT_LIST, BesideShort
from sparsity_length.results.schemas import OWN
from sparsity_length.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class Selecting(BesideShort):
    """What is measured of every chunk: which tokens are chosen, and where they are tried.

    InputError if it does not fit together. What is not asked for is resolved: k that fit, a short list
    if it is shorter than the distant context, no swaps under the ablation `mask`.
    """

    k: tuple[int, ...] | None = setting(
        positive_int,
        f"numbers of influential tokens to evaluate (default: {', '.join(map(str, DEFAULT_KS))}, up to the"
        " size of the distant context)",
        None,
        many="+",
    )
    rules: tuple[str, ...] = setting(
        str, f"selection rules, from: {', '.join(RULES)}", DEFAULT_RULES, many="+", metavar="RULE"
    )
    ablation: str = setting(
        str,
        "what replaces an ablated token: with mask, nothing; with swap, another document's token",
        DEFAULT_ABLATION,
        choices=ABLATIONS,
    )
    search_swaps: int | None = setting(
        whole_number(0),
        "under --ablation swap: number of documents whose tokens replace ablated ones while rules search"
        " (effects are averaged over them); with 0, the search removes tokens instead",
        SEARCH_SWAPS,
        metavar="N",
    )
    trial_swaps: int | None = setting(
        positive_int,
        "under --ablation swap: number of documents among whose tokens the selected ones are then evaluated",
        TRIAL_SWAPS,
        metavar="N",
    )
    null_fraction: float = setting(
        positive_fraction,
        "fraction of documents with a null baseline, chosen by a hash of the text; rules that mean nothing"
        " without this baseline are measured on these documents only",
        1.0,
    )
    screen: int | None = setting(
        positive_int,
        "for leave_one_out*: of the tokens before each run of neighboring targets, leave out only the N with"
        " the largest estimated effects on any of them, and rank the others by their estimates (default:"
        f" leave out every token if the long context has up to {LONGEST_EXACT:,} tokens, else {SHORT_LIST})",
        None,
        metavar="N",
    )
    minimum_gain: float = setting(
        finite_float,
        "smallest gain from the distant context, in nats, for which a target has k_90 and mean_log2_k",
        MINIMUM_GAIN,
    )
    seed: int = setting(random_seed, "random seed of the rules random and gradient_divergence", 0)

    def resolve(self) -> dict[str, Any]:
        """What is really done."""
        super().resolve()
        is_swap = self.ablation == SWAP
        rules = tuple(dict.fromkeys(self.rules))
        for rule in map(find_rule, rules):
            if is_swap and self.search_swaps and rule.search == "greedy":
                raise InputError(
                    f"{rule.name} builds up a context in which nothing else stands; say --search-swaps 0 or"
                    " --ablation mask"
                )
        # Every target must fill every rank, so the first one, with the fewest distant tokens, decides.
        fewest = self.smallest_far_context
        ks = sorted(set(self.k or [k for k in DEFAULT_KS if k <= fewest]))
        if ks[-1] > fewest:
            raise InputError(
                f"--k {ks[-1]} is more than the {fewest} distant tokens of the first target: choose a smaller"
                " k, a longer long context or fewer targets per chunk"
            )
        if self.null_fraction < 1 and all(find_rule(rule).needs_null for rule in rules):
            raise InputError(
                "--null-fraction leaves most documents without any rule; name one that needs no null, such as"
                f" {DEFAULT_RULES[0]}"
            )
        screen = self.screen
        if screen is None and self.long_context_length > LONGEST_EXACT:
            screen = SHORT_LIST
        # With room for every token there is nothing to screen; beyond LONGEST_EXACT the number stays, as None
        # would mean SHORT_LIST when built again.
        has_room = screen is not None and screen >= fewest and self.long_context_length <= LONGEST_EXACT
        is_whole = screen is None or has_room or not {*LEAVE_ONE_OUT_RULES} & {*rules}
        return {
            "k": tuple(ks),
            "rules": rules,
            "search_swaps": self.search_swaps if is_swap else None,
            "trial_swaps": self.trial_swaps if is_swap else None,
            "screen": None if is_whole else screen,
        }

    @property
    def ks(self) -> tuple[int, ...]:
        """The numbers of influential tokens asked for, ascending."""
        return self.k or ()

    @property
    def num_others(self) -> int:
        """Documents that a chunk is measured with: one for the null, then the trial's swaps, the search's."""
        return 1 + (self.trial_swaps or 0) + (self.search_swaps or 0)

    @property
    def smallest_far_context(self) -> int:
        """Distant tokens of the first target."""
        return int(self.lengths.num_far_tokens_T[0])

    def numbers_of(self, rule: str) -> list[int]:
        """The numbers of tokens that a rule is studied at: those asked for, ascending.

        Of the controls, whose order costs nothing, also every power of two up to the whole distant context,
        to tell how many of the nearest tokens do what a few chosen ones do. Of screened rules too: their far
        context is long, and what lies between the largest number asked for and all of it would not be known.
        """
        if rule not in CONTROLS and (self.screen is None or rule not in LEAVE_ONE_OUT_RULES):
            return sorted(set(self.ks))
        # Of 959 distant tokens: 1, 2, 4, … 512.
        powers = {1 << exponent for exponent in range(self.smallest_far_context.bit_length())}
        return sorted({*self.ks, *powers, self.smallest_far_context})

    def rules_in(self, distant_context: str, document_id: str, *, every_null: bool = True) -> list[str]:
        """The rules that choose in this distant context of a document.

        Without `every_null` only those choose in the null that say nothing without theirs.
        """
        # The end of a hash is anywhere in [0, 1); its beginning is what documents are ordered by.
        has_null = int(document_id[-8:], 16) / 16**8 < self.null_fraction
        is_own = distant_context == OWN
        return [
            rule.name
            for rule in map(find_rule, self.rules)
            if (is_own and not rule.needs_null) or (has_null and (is_own or every_null or rule.needs_null))
        ]

    def seed_of(self, document_id: str, chunk_index: int) -> tuple[int, ...]:
        """The seed of all that is drawn for a chunk, whichever model measures it."""
        # An ID is a hash of the text, so draws do not depend on which other documents are measured.
        return (self.seed, int(document_id, 16), chunk_index)


@dataclass(frozen=True, kw_only=True)
class Evaluating(Settings):
    """What evaluate_tokens asks for: whose choices are evaluated, and under which ablation."""

    choices: Path = setting(
        folder_path, "results folder of influential_tokens with the choices to evaluate", metavar="RESULTS"
    )
    choices_of: str | None = setting(
        str, "model that made the choices, if the folder holds those of several models", None, metavar="MODEL"
    )
    ablation: str | None = setting(
        str, "what replaces an ablated token (default: as for the choices)", None, choices=ABLATIONS
    )
    trial_swaps: int | None = setting(
        positive_int,
        "under --ablation swap: number of documents among whose tokens the choices are evaluated; none of"
        f" them was used for the search (default: as for the choices, or {TRIAL_SWAPS})",
        None,
        metavar="N",
    )

    def tried(self, chosen: Selecting) -> Selecting:
        """The settings that made choices, as they are evaluated."""
        return replace(
            chosen,
            ablation=self.ablation or chosen.ablation,
            trial_swaps=self.trial_swaps or chosen.trial_swaps or TRIAL_SWAPS,
            # Choices of --ablation mask were made in no swapped context.
            search_swaps=chosen.search_swaps or 0,
        )
