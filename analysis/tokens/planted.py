"""Planted answers beyond the trained length: whether those hold longer that fewer tokens decide.

Signs are planted in real text (`pipeline/plant_signs.py`), k of which decide an answer, in documents of
several lengths. An answer is right where the model gives it more than half of the probability. Means are over
texts; of several models of one training also their range.

Signs are the vocabulary's rarest tokens, and yet stand in texts by chance, in a text twice as long twice as
often. Where such a token is another sign of the same question, no model can know which one counts:
`texts_with_chance_signs` names these texts.
"""

from collections import defaultdict
from collections.abc import Sequence, Set
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.read import joined_on_common, mean_columns, summarized
from pipeline.cli import InputError
from pipeline.results.read import read_artefact
from pipeline.text.folder import EVALUATION_FILE, read_evaluation_documents
from pipeline.text.planting import read_planted

LEARNT = 0.9
"""The share of right answers at the trained length from which on a model has learnt them."""
_CELL = ["num_planted", "test_length"]


def answers_at_lengths(
    results: Sequence[Path], planted: Sequence[Path], left_out: Set[str] = frozenset()
) -> pd.DataFrame:
    """How often each model's answers are right, and what they cost: a row a model, k and length.

    Args:
        results: folders of loss_differences on planted documents, one a length.
        planted: the data folders that those documents are from.
        left_out: IDs of documents that do not count.

    Returns:
        The columns of the schema `planted_lengths`.
    """
    keys = ["document_id", "target_position"]
    columns = [*keys, "long_context_loss"]
    measured = pd.concat([read_artefact(folder, "loss_differences", columns) for folder in results])
    truth = pd.DataFrame([row for folder in planted for row in read_planted(folder)])
    if not truth["document_id"].isin(measured["document_id"]).any():
        raise InputError(
            f"none of {', '.join(map(str, results))} measured a planted answer of"
            f" {', '.join(map(str, planted))}; run olmo_configs/studies/planted_lengths.yaml"
        )
    answers = joined_on_common(measured, truth, keys, "planted answers and their losses")
    answers = answers[~answers["document_id"].isin(left_out)].copy()
    if answers.empty:
        raise InputError(
            "each of the texts that were measured holds another sign by chance; leave --without-chance-signs"
            " out, or plant in more text"
        )
    answers["test_length"] = answers["target_position"] + 1
    answers["right_share"] = answers["long_context_loss"] < np.log(2)
    answers["loss"] = answers["long_context_loss"]
    return summarized(answers, ["model", *_CELL], lambda cell: mean_columns(cell, "loss", "right_share"))


def learnt(answers: pd.DataFrame) -> pd.DataFrame:
    """The rows of models and k that are right at the shortest length, the one trained at."""
    shortest = answers[answers["test_length"] == answers["test_length"].min()]
    known = shortest.loc[shortest["right_share"] >= LEARNT, ["model", "num_planted"]]
    return answers.merge(known, on=["model", "num_planted"])


def over_models(answers: pd.DataFrame) -> pd.DataFrame:
    """Mean and range over models of the share of right answers and of the loss: a row a k and length."""
    return (
        answers.groupby(_CELL)
        .agg(
            right_share=("right_share", "mean"), right_share_low=("right_share", "min"),
            right_share_high=("right_share", "max"), loss=("loss", "mean"), loss_low=("loss", "min"),
            loss_high=("loss", "max"), num_models=("model", "nunique"),
            num_documents=("num_documents", "min"),
        )
        .reset_index()
    )  # fmt: skip


def tokens_decide(count: int) -> str:
    """A number of deciding tokens, such as "1 token decides", "4 tokens decide"."""
    return "1 token decides" if count == 1 else f"{count} tokens decide"


def texts_with_chance_signs(planted: Sequence[Path]) -> set[str]:
    """IDs of the documents that hold, beside the planted ones, another sign of the same number of signs.

    A second copy of a planted sign says the same, so it does not count. The signs of each number are those
    that some document plants: hundreds of documents plant all of them.
    """
    texts = []
    signs: dict[int, set[int]] = defaultdict(set)
    for folder in planted:
        documents = {
            document.document_id: document.token_ids
            for document in read_evaluation_documents(folder / EVALUATION_FILE)
        }
        for row in read_planted(folder):
            tokens, places = documents[row["document_id"]], row["planted_positions"]
            own = set(tokens[places].tolist())
            signs[row["num_planted"]] |= own
            others = set(np.delete(tokens[: row["target_position"]], places).tolist())
            texts.append((row["document_id"], row["num_planted"], own, others))
    return {name for name, num_planted, own, others in texts if others & (signs[num_planted] - own)}


_HEIGHT = 2.6  # inches
_PANELS = {"right_share": "share of answers that are right", "loss": "loss of the answer (nats)"}


def planted_lengths_figure(cells: pd.DataFrame, which_texts: str = "") -> Figure:
    """Right answers and their loss against length."""
    figure, axes = drawing.panels(2, _HEIGHT)
    lengths = sorted(cells["test_length"].unique())
    ks = sorted(cells["num_planted"].unique())
    for ax, (name, label) in zip(axes, _PANELS.items(), strict=True):
        ends = []
        for color, k in zip(drawing.graded(len(ks)), ks, strict=True):
            line = cells[cells["num_planted"] == k].sort_values("test_length")
            style = drawing.Style(color, "o").measured
            ends.append(
                drawing.draw_line(
                    ax, line["test_length"], line, name, style, tokens_decide(int(k)), band=True
                )
            )
        ax.set_xscale("log", base=2)
        ax.set_xticks(lengths, [str(length) for length in lengths])
        ax.minorticks_off()
        ax.set(xlabel=f"tokens of the document (trained at {lengths[0]})", ylabel=label)
        ax.axvspan(lengths[0] / 1.15, lengths[0] * 1.05, color=drawing.GREY, alpha=0.15, linewidth=0)
    axes[0].set_ylim(-0.03, 1.05)
    axes[1].set_ylim(bottom=0)
    drawing.label_line_ends(axes[1], ends)
    fewest, most = int(cells["num_models"].min()), int(cells["num_models"].max())
    models = drawing.counted(most, "model") if fewest == most else f"{fewest} to {most} models"
    texts = int(cells["num_documents"].min())
    drawing.put_title(
        figure, "Do answers hold longer that fewer planted tokens decide?",
        f"n = {models} that learnt the answers, {texts:,} texts{which_texts} or more each",
        "points: mean of the models", "bands: their range", "shaded: the trained length",
    )  # fmt: skip
    return figure
