"""What may be asked of rules together, refused in a sentence before anything is measured."""

from collections.abc import Collection

from pipeline.errors import InputError
from pipeline.influence.rules import BACKGROUND, LEAVE_ONE_OUT_RULES, RULES, SUBSTITUTE


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
                f"--intervention background has no meaning for rule {unable[0]}; it is for {', '.join(able)}"
            )


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
