"""What a reader would stumble over in a figure, by matplotlib's own extents of its texts."""

import re
from itertools import combinations
from typing import Any
from unittest import mock

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis.drawing import SUBTITLE, TITLE

SMALLEST_FONT = 8.0
_TOLERANCE = 1.0  # pixels


def drawn_texts(figure: Figure) -> list[Text]:
    """The texts that drawing the figure draws; ticks outside the limits are not among them."""
    texts: list[Text] = []
    draw = Text.draw

    def recorded(text: Text, *arguments: Any, **options: Any) -> None:
        if text.get_visible() and text.get_text().strip():
            texts.append(text)
        draw(text, *arguments, **options)

    with mock.patch.object(Text, "draw", recorded):
        figure.canvas.draw()
    return list({id(text): text for text in texts}.values())


def legibility_faults(figure: Figure) -> list[str]:
    """A sentence a fault, none for a figure that can be read.

    No title or n; a run ID or a name of code in place of words; text that leaves the canvas, touches another
    text, or is small; a legend on the data.
    """
    texts = drawn_texts(figure)
    words = [text.get_text() for text in texts]
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in texts]
    small = [text for text in texts if text.get_fontsize() < SMALLEST_FONT]
    canvas = figure.bbox.padded(_TOLERANCE)
    return [
        *_faults_of_head(texts),
        *(f"'{text}' is no words" for text in words if is_code(text)),
        *(f"'{text.get_text()}' is of {text.get_fontsize():g} points" for text in small),
        *(f"'{text}' leaves the canvas" for text, box in boxes if canvas.count_contains(box.corners()) < 4),
        *(
            f"'{first}' touches '{second}'"
            for (first, box), (second, other) in combinations(boxes, 2)
            if box.padded(-_TOLERANCE / 2).overlaps(other.padded(-_TOLERANCE / 2))
        ),
        *(f"a legend lies on the data of panel {i}" for i, ax in enumerate(figure.axes) if ax.get_legend()),
    ]


def _faults_of_head(texts: list[Text]) -> list[str]:
    of_kind = {
        kind: [text.get_text() for text in texts if text.get_gid() == kind] for kind in (TITLE, SUBTITLE)
    }
    faults = [f"it has {len(found)} {kind}s" for kind, found in of_kind.items() if len(found) != 1]
    return faults + ["its subtitle does not tell n" for found in of_kind[SUBTITLE] if "n = " not in found]


def is_code(words: str) -> bool:
    """Whether a text holds a run ID or a name of code: an underscore, or -seed0, outside mathematics."""
    return bool(re.search(r"\w_\w|-seed\d", re.sub(r"\$.*?\$", "", words)))


def assert_legible(figure: Figure) -> None:
    """Fail with every fault of a figure, and close it."""
    faults = legibility_faults(figure)
    plt.close(figure)
    assert not faults, "\n".join(faults)
