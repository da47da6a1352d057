"""What commands take, as numbers and in words."""

from typing import NamedTuple


class Cost(NamedTuple):
    """Of one command, or several."""

    train_tokens: int = 0
    token_forwards: int = 0
    flops: float = 0
    seconds: float = 0
    num_unknown: int = 0
    """Commands that are as long as the data, which is not there yet."""

    def __add__(self, other: "Cost") -> "Cost":  # type: ignore[override]
        """Of both."""
        return Cost(
            self.train_tokens + other.train_tokens,
            self.token_forwards + other.token_forwards,
            self.flops + other.flops,
            self.seconds + other.seconds,
            self.num_unknown + other.num_unknown,
        )


def in_words(cost: Cost) -> str:
    """One line."""
    if cost == Cost():
        return "minutes at most"
    words = [
        f"trains on {cost.train_tokens / 1e6:,.1f} M tokens" if cost.train_tokens else "",
        f"{cost.token_forwards / 1e6:,.2f} M token-forwards" if cost.token_forwards else "",
        f"{cost.flops:.2g} FLOPs, {cost.seconds / 3600:,.2f} hours" if cost.flops else "",
        f"{cost.num_unknown} not counted, as only the data tells how long" if cost.num_unknown else "",
    ]
    return ", ".join(filter(None, words))
