"""One colour and marker for each role, everywhere: a kind of training, a selection rule, a position scheme.

The named colours are Okabe and Ito's, which colour-blind readers tell apart. Solid and filled is a
measurement, hollow and dashed always the null of what has that colour and marker. What a model's role is:
`analysis.roles`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#767676"
_READABLE = 4.5  # contrast with white that the web's guidelines ask of text


@dataclass(frozen=True)
class Look:
    """A role's colour and marker."""

    color: str
    marker: str

    @property
    def measured(self) -> dict[str, Any]:
        """As matplotlib's line takes it: solid, filled."""
        return {"color": self.color, "marker": self.marker, "linestyle": "-"}

    @property
    def null(self) -> dict[str, Any]:
        """The same of its null: dashed, hollow."""
        return {
            "color": self.color,
            "marker": self.marker,
            "linestyle": "--",
            "markerfacecolor": "white",
            "linewidth": 1,
        }


TRAINED_LONG = Look(BLUE, "o")
TRAINED_POSE = Look(VERMILION, "s")
TRAINED_CONTIGUOUS = Look(GREEN, "^")
"""Trained short: with PoSE, or with contiguous positions. No rule has these three colours."""
OTHER_MODELS = (Look(BLACK, "D"), Look(GREY, "d"), Look("#5B5BD6", "8"), Look("#8C6D1F", "X"))
"""Of results that do not tell how a model was trained."""
POSITION_LOOKS = {
    "contiguous": TRAINED_CONTIGUOUS,
    "pose": TRAINED_POSE,
    "coupled": Look(SKY, "o"),
    "predicted": Look(PURPLE, "h"),
    "randomized": Look(ORANGE, "D"),
}
"""Position schemes of the synthetic tasks; PoSE and contiguous look as they do in text."""
RULE_LOOKS = {
    "leave_one_out_divergence": Look(ORANGE, "v"), "leave_one_out": Look(PURPLE, "D"),
    "nearest": Look(BLACK, "X"), "random": Look(GREY, "P"),
    "add_one_in": Look(SKY, "<"), "greedy": Look("#7A8B00", ">"), "gradient": Look("#8C3B1F", "p"),
    "attention": Look("#00838F", "h"),
    "leave_one_out_search": Look("#00456B", "8"), "banzhaf": Look("#8C6D1F", "H"),
    "add_one_in_divergence": Look("#7B3F9E", "<"), "greedy_divergence": Look("#4E5A00", ">"),
    "gradient_divergence": Look("#C0653F", "p"), "banzhaf_divergence": Look("#A33E5B", "H"),
    "context_length_probing": Look("#B8860B", "d"), "context_length_probing_divergence": Look("#6B4E00", "d"),
    "surrogate": Look("#E377C2", "^"), "surrogate_divergence": Look("#9E2A7D", "^"),
    "attention_rollout": Look("#00585F", "h"), "learned_attention": Look("#FF8C69", "s"),
    "learned_attention_divergence": Look("#B5533C", "s"), "input_x_gradient": Look("#5B5BD6", "o"),
    "integrated_gradients": Look("#2E2E8C", "o"),
}  # fmt: skip
"""Of every selection rule."""
_UNKNOWN_RULE = Look(BLACK, "o")


def rule_look(rule: str) -> Look:
    """That of a selection rule; black circles for one that is not known."""
    return RULE_LOOKS.get(rule, _UNKNOWN_RULE)


def graded(num_colors: int) -> Sequence[str]:
    """Colours of ordered values, from dark to light: of cividis, which colour-blind readers see as others do.

    Without its lightest end, which paper swallows.
    """
    return [to_hex(colormaps["cividis"](place)) for place in np.linspace(0, 0.85, num_colors)]


def ink(color: str) -> str:
    """A colour for text on white: the same hue, as dark as it must be to be read."""
    rgb = np.array(to_rgb(color))
    while _contrast_with_white(rgb) < _READABLE:
        rgb = 0.95 * rgb
    red, green, blue = map(float, rgb)
    return to_hex((red, green, blue))


def _contrast_with_white(rgb: np.ndarray) -> float:
    """Of the web's guidelines (WCAG 2.2), from 1 to 21."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(1.05 / (linear @ np.array([0.2126, 0.7152, 0.0722]) + 0.05))
