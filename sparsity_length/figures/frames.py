"""What the library's frames say in a few numbers and in a figure; intervals are over texts."""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Optional

import pandas as pd

from sparsity_length.cli import InputError
from sparsity_length.figures.read import (
    interval_columns,
    interval_over_documents,
    mean_columns,
    summarized,
)
from sparsity_length.results.schemas import DIVERGENCE, LOSS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """What k influential tokens recover; or the mean loss by context length.

    Args:
        frame: of `influential_tokens`, or of `losses` with `context_lengths`; or some of its rows, such as
            those of a few texts. InputError if it is of another kind.

    Returns:
        A frame. Columns that end in _low and _high are ends of 95% intervals over texts: Student's t times
        the jackknife's error below 50 texts, the bootstrap's from 50 on; NaN for a single text.

        Of influential tokens one row for each criterion and k, with the columns
            criterion: "loss" of the target token, or "divergence" (KL) of the whole prediction;
            k: the first k influential tokens together;
            num_targets, num_texts: with so many distant tokens; a mean over targets weighs each alike;
            gain: what the distant context is worth, nats per target: baseline minus long-context loss, or
                the baseline's divergence;
            recovered_fraction: of the gain, what the k tokens recover, a ratio of sums over targets; it says
                little if gain_low is not above 0;
            null_recovered_fraction: the null baseline, what as many tokens of another text recover that were
                selected in the same way; NaN of rules that say enough without it;
            excess_fraction: recovered_fraction minus that, paired by target.

        Of losses one row for each context length, with the columns context_length, num_targets, num_texts,
        loss and divergence: means over targets, nats.
    """
    columns = getattr(frame, "columns", ())
    if "context_length" in columns:
        table = summarized(
            frame.rename(columns={"text": "document_id"}),
            ["context_length"],
            lambda targets: mean_columns(targets, "loss", "divergence"),
        )
    elif "rank" in columns:
        table = pd.concat([_recovered(frame, criterion) for criterion in (LOSS, DIVERGENCE)])
    else:
        raise InputError("summary needs a frame of influential_tokens, or of losses with context_lengths")
    return table.rename(columns={"num_documents": "num_texts"}).reset_index(drop=True)


def _recovered(frame: pd.DataFrame, criterion: str) -> pd.DataFrame:
    """What the first k tokens recover by one criterion: a row for each k; `summary` lists the columns."""

    def numbers(targets: pd.DataFrame) -> dict[Hashable, float]:
        columns = mean_columns(targets, "gain")
        for name in ("recovered", "null_recovered", "excess"):
            known = targets.dropna(subset=name)
            fraction = interval_over_documents(known["document_id"], known[name], known["gain"])
            columns |= interval_columns(f"{name}_fraction", fraction)
        return columns

    # Only the ranks that are one of k have a loss with the sources up to there.
    rows = frame.dropna(subset="sparse_context_loss").astype({"long_context_loss": "float64"})
    baseline = rows[f"baseline_{criterion}"].astype("float64")
    recovered = baseline - rows[f"sparse_context_{criterion}"]
    null_recovered = baseline - rows[f"null_sparse_context_{criterion}"]
    targets = rows.assign(
        document_id=rows["text"],
        criterion=criterion,
        k=rows["rank"],
        gain=baseline - rows["long_context_loss"] if criterion == LOSS else baseline,
        recovered=recovered,
        null_recovered=null_recovered,
        excess=recovered - null_recovered,
    )
    return summarized(targets, ["criterion", "k"], numbers)


def plot(frame: pd.DataFrame, ax: Optional["Axes"] = None) -> "Axes":
    """Draw the mean loss against context length, with 95% intervals over texts.

    Args:
        frame: of `losses` with `context_lengths`.
        ax: where to draw, of matplotlib; None: a new figure.

    Returns:
        The axes, for titles, further lines and `ax.figure.savefig("curve.png")`. InputError without
        matplotlib.
    """
    try:
        from matplotlib import pyplot  # late, as it is optional

        from sparsity_length.figures import drawing
    except ModuleNotFoundError as error:
        raise InputError(f"{error}; plot needs matplotlib: pip install matplotlib") from error
    if "context_length" not in getattr(frame, "columns", ()) or not len(frame):
        raise InputError("plot needs a frame of losses with context_lengths, such as (8, 32, 128, 512)")
    curve = summary(frame)
    if ax is None:
        ax = pyplot.subplots(layout="constrained")[1]
    drawing.draw_line(ax, curve["context_length"], curve, "loss", {"marker": "o"})
    drawing.length_axis(ax, curve["context_length"], "context length (tokens)")
    ax.set_ylabel("mean loss (nats per token)")
    num_targets, num_texts = curve[["num_targets", "num_texts"]].iloc[0]
    sample = f"{drawing.counted(num_targets, 'target')}, {drawing.counted(num_texts, 'text')}"
    bars = "; bars: 95% over texts" if num_texts > 1 else ""
    ax.set_title(f"{sample}{bars}", loc="left")
    return ax
