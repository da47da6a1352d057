"""Numbers before speed: every variant's influences must be ours."""

from dataclasses import dataclass, field

import numpy as np
from variants import Influences
from worker import Introduction, Timed, VariantName

from pipeline.cli import InputError


@dataclass
class Measured:
    """What one variant has shown so far."""

    name: VariantName
    introduction: Introduction
    timed: list[Timed] = field(default_factory=list)

    @property
    def seconds_used(self) -> float:
        """By timed runs."""
        return sum(run.seconds for run in self.timed)

    @property
    def influences(self) -> Influences:
        """Of the last timed run, which hold more pairs; of the first far tokens before there is one."""
        return self.timed[-1].influences if self.timed else self.introduction.checked


def refuse_unequal(measured: dict[str, Measured], tolerance: float) -> None:
    """Compare every float32 variant with ours of the same intervention, on the pairs both have.

    Args:
        tolerance: of the largest difference, in standard deviations of our influences.

    Raises:
        InputError: one differs; names it, the pair and both numbers.
    """
    ours = {
        m.introduction.intervention: m
        for m in measured.values()
        if m.name.attribute == "SharedPrefixes" and m.name.dtype == "float32"
    }
    for variant in measured.values():
        if variant.name.dtype == "float32":
            refuse_difference(
                variant.name.key,
                ours[variant.introduction.intervention].influences,
                variant.influences,
                tolerance,
                variant.introduction.is_unsigned,
            )


def refuse_difference(
    label: str, ours: Influences, theirs: Influences, tolerance: float, is_unsigned: bool = False
) -> None:
    """Compare two measurements on the pairs that both have; `is_unsigned`: theirs has no signs.

    Raises:
        InputError: they differ by more than `tolerance` standard deviations, or share no pair.
    """
    values = {pair: value for *pair_, value in _rows(ours) for pair in [tuple(pair_)]}
    both = [
        (pair, values[pair], value)
        for *pair_, value in _rows(theirs)
        for pair in [tuple(pair_)]
        if pair in values
    ]
    if not both:
        raise InputError(f"{label} measured no pair that ours did, so its numbers cannot be compared")
    ours_N, theirs_N = (np.array([row[column] for row in both]) for column in (1, 2))
    difference_N = np.abs((np.abs(ours_N) if is_unsigned else ours_N) - theirs_N)
    allowed = tolerance * float(ours.influence_N.std())
    worst = int(difference_N.argmax())
    # Written so that NaN is refused too.
    if not difference_N[worst] <= allowed:
        (target, position), our_value, their_value = both[worst]
        raise InputError(
            f"{label} gives the influence of token {position} on target {target} as {their_value:.6g} nats,"
            f" ours {our_value:.6g}: more than {allowed:.2g} apart, so nothing is timed or shown"
        )


def _rows(influences: Influences) -> list[tuple[int, int, float]]:
    columns = (influences.target_index_N, influences.position_N, influences.influence_N)
    return list(zip(*(column.tolist() for column in columns), strict=True))
