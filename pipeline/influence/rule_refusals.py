"""What may be asked of rules together, refused in a sentence before anything is measured."""

from collections.abc import Collection

from pipeline.errors import InputError
from pipeline.influence.rules import BACKGROUND, LEAVE_ONE_OUT_RULES, RULES, SCREENED_RULES, SUBSTITUTE


def refuse_intervention(rules: Collection[str], intervention: str) -> None:
    """Do nothing where the intervention makes sense for these rules.

    Raises:
        InputError: it would change nothing, or one of them has no meaning under it.
    """
    if intervention == SUBSTITUTE and not set(LEAVE_ONE_OUT_RULES) & set(rules):
        raise InputError(
            "--intervention substitute would change nothing: of --rules only"
            f" {', '.join(LEAVE_ONE_OUT_RULES)} leave tokens out; add one, or say --intervention remove"
        )
    if intervention == BACKGROUND:
        able = [name for name, rule in RULES.items() if BACKGROUND in rule.interventions]
        if unable := [name for name in rules if name not in able]:
            raise InputError(
                f"--intervention background has no meaning for rule {unable[0]}; it is for {', '.join(able)};"
                " choose of these, or say --intervention remove"
            )


def refuse_candidates(
    rules: Collection[str], intervention: str, num_candidates: int | None, largest_k: int
) -> None:
    """Do nothing where a screen of so many candidates makes sense, or where there is none.

    Raises:
        InputError: it would change nothing, has no meaning under the intervention, or leaves too few tokens.
    """
    if num_candidates is None:
        return
    flag = f"--num-candidates {num_candidates}"
    if not set(SCREENED_RULES) & set(rules):
        raise InputError(
            f"{flag} would change nothing: of --rules only {', '.join(SCREENED_RULES)} try tokens one by one;"
            " add one, or leave it out"
        )
    if intervention == BACKGROUND:
        raise InputError(
            f"{flag} has no meaning under --intervention background, where one pass tries a token for all"
            " targets; leave it out"
        )
    if num_candidates < largest_k and {"add_one_in", "add_one_in_divergence"} & set(rules):
        raise InputError(f"{flag} leaves rule add_one_in no {largest_k} tokens to choose, as --k asks for")


def refuse_subsets(rules: Collection[str], num_subsets: int, max_k: int) -> None:
    """Do nothing where there are enough random subsets for these rules, in pairs.

    Raises:
        InputError: their number is odd, or below the largest k of a rule that fits a sparse linear model.
    """
    if num_subsets % 2:
        raise InputError(f"--num-subsets {num_subsets}: subsets come in pairs; choose an even number")
    for rule in rules:
        if rule.startswith("surrogate") and num_subsets < max_k:
            raise InputError(
                f"--num-subsets {num_subsets} tells rule {rule} of at most {num_subsets} tokens, and --k asks"
                f" for {max_k}; choose at least as many subsets"
            )
