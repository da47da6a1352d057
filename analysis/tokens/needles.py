"""Needle in a haystack: how well answers are retrieved, and whether influential tokens are the needle's.

Targets are the tokens of the answer at the end of each planted document (`plant_signs.py --needles`). A
needle is retrieved where they cost less than in the control, the same haystack and question without the
needle. The truth for S_k is the answer's tokens in the needle:

    precision   how many of the k tokens are among them
    recall      how many of them are among the k tokens
    hit_share   targets whose k tokens hold the very token of the needle that is predicted

Beside each stands chance, its exact mean for k far tokens at random, and the same rule's choice in the null,
at the same positions of another document. Intervals are over haystacks, not over planted documents.
In figures the null is dashed and hollow.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.read import joined_on_common, mean_columns, summarized
from pipeline.cli import InputError
from pipeline.measuring.rules import CONTROLS
from pipeline.results.read import read_artefact, read_settings
from pipeline.results.schemas import OTHER_DOCUMENT
from pipeline.text.planting import read_needles

_OF_NEEDLES = [
    "document_id",
    "source_document_id",
    "context_length",
    "depth",
    "needle_answer_positions",
    "answer_position",
]
MEASURES = ["precision", "recall", "hit_share"]


def needle_folders(folder: Path) -> list[Path]:
    """The length-* folders of `plant_signs --needles --out`, shortest first."""
    found = sorted(folder.glob("length-*"), key=lambda path: int(path.name.removeprefix("length-")))
    if not found:
        raise InputError(f"{folder} holds no folder length-*; pipeline/plant_signs.py --needles writes them")
    return found


def answers(folder: Path, artefact: str, columns: Sequence[str]) -> pd.DataFrame:
    """The targets of all lengths that are tokens of an answer, with what is true of their needle.

    Returns:
        those columns, the columns of the schema `needles` that say where the needle is, answer_token (index
        of the target in the answer), num_far_tokens (tokens before the short context).

    Raises:
        InputError: a folder lacks results, or they measured no token of an answer.
    """
    tables = []
    for length_folder in needle_folders(folder):
        results = length_folder / "results"
        needles = pd.DataFrame(read_needles(length_folder / "data"))[_OF_NEEDLES]
        rows = read_artefact(results, artefact, ["document_id", "target_position", *columns])
        what = f"planted documents of {length_folder.name}, in {artefact}"
        rows = joined_on_common(rows, needles, ["document_id"], what)
        rows = rows[rows["target_position"] >= rows["answer_position"]]
        if rows.empty:
            raise InputError(
                f"{results} measured no token of an answer; run the stages on {length_folder}/data"
            )
        of_model = read_settings(results, artefact)
        short = {model: settings["short_context_length"] for model, settings in of_model.items()}
        rows["num_far_tokens"] = rows["target_position"] - rows["model"].map(short)
        tables.append(rows)
    table = pd.concat(tables, ignore_index=True)
    return table.assign(answer_token=table["target_position"] - table["answer_position"])


def retrieval_losses(folder: Path) -> pd.DataFrame:
    """How well answers are retrieved: a row a model, context length and depth.

    Returns:
        model, context_length, depth, num_targets (tokens of answers), num_documents (haystacks), then with
        intervals loss (of the answer, needle in the haystack), control_loss (no needle), retrieval_gain
        (control_loss - loss; positive = the needle is used), all nats a token, and retrieved_share, the
        targets predicted with more than half of the probability.
    """
    rows = answers(folder, "loss_differences", ["long_context_loss"])
    keys = ["model", "source_document_id", "context_length", "answer_token"]
    control = rows.loc[rows["depth"].isna(), [*keys, "long_context_loss"]]
    with_needle = rows[rows["depth"].notna()]
    what = "answer tokens with and without the needle"
    pairs = joined_on_common(with_needle, control, keys, what, ("", "_of_control"))
    pairs = pairs.assign(
        loss=pairs["long_context_loss"],
        control_loss=pairs["long_context_loss_of_control"],
        retrieval_gain=pairs["long_context_loss_of_control"] - pairs["long_context_loss"],
        retrieved_share=(pairs["long_context_loss"] < np.log(2)).astype("float64"),
    )
    names = "loss", "control_loss", "retrieval_gain", "retrieved_share"
    return _means(pairs, ["model", "context_length", "depth"], names)


def found_needles(folder: Path, ks: Sequence[int] | None = None) -> pd.DataFrame:
    """Whether S_k is the needle's answer: a row a model, rule, context length and k.

    Only targets whose needle lies in the far context as a whole: one in the short context needs no finding.

    Args:
        folder: of `plant_signs --needles`, with results of influential_tokens.
        ks: numbers of influential tokens; the powers of two up to all that were selected where None.

    Returns:
        model, rule, context_length, k, far_context (own, or the null), num_targets, num_documents
        (haystacks), then with intervals each of `MEASURES` and, as chance_*, its mean at random.
    """
    columns = ["rule", "far_context", "rank", "context_position"]
    rows = answers(folder, "influential_tokens", columns)
    rows = rows[rows["depth"].notna()]
    rows = rows[rows["needle_answer_positions"].map(max) < rows["num_far_tokens"]]
    if rows.empty:
        raise InputError(f"in no document of {folder} does the needle lie before the short context")
    targets = zip(
        rows["context_position"], rows["needle_answer_positions"], rows["answer_token"], strict=True
    )
    found = [(place in answer, place == answer[token], len(answer)) for place, answer, token in targets]
    names = ["in_needle", "is_hit", "num_answer_tokens"]
    rows = rows.join(pd.DataFrame(found, columns=names, index=rows.index))
    studied = [2**power for power in range(int(rows["rank"].max()).bit_length())] if ks is None else ks
    return pd.concat([_found(rows[rows["rank"] <= k], k) for k in studied], ignore_index=True)


def _found(first: pd.DataFrame, k: int) -> pd.DataFrame:
    """`found_needles` of one k; `first` are the k tokens of every target."""
    target = [
        "model",
        "rule",
        "context_length",
        "far_context",
        "document_id",
        "source_document_id",
        "target_position",
        "num_far_tokens",
        "num_answer_tokens",
    ]
    sums = first.groupby(target, as_index=False)[["in_needle", "is_hit"]].sum()
    num_far = sums["num_far_tokens"]
    num_answer = sums["num_answer_tokens"]
    sums = sums.assign(
        precision=sums["in_needle"] / k,
        recall=sums["in_needle"] / num_answer,
        hit_share=sums["is_hit"].astype("float64"),
        chance_precision=num_answer / num_far,
        chance_recall=k / num_far,
        chance_hit_share=k / num_far,
    )
    names = [name for measure in MEASURES for name in (measure, f"chance_{measure}")]
    return _means(sums, ["model", "rule", "context_length", "far_context"], names).assign(k=k)


def _means(rows: pd.DataFrame, keys: list[str], names: Sequence[str]) -> pd.DataFrame:
    """A row a group: sample sizes, and the mean of each column over haystacks with its interval."""
    of_haystacks = rows.assign(document_id=rows["source_document_id"])
    return summarized(of_haystacks, keys, lambda group: mean_columns(group, *names))


OVER_HAYSTACKS = "bars: 95 % over haystacks"
_STEP_ASIDE = 0.012  # of the depth, between models
_BESIDE = 1.04  # factor on a logarithmic axis between a rule's bars and its null's, which may be equal


def _sample(rows: pd.DataFrame) -> tuple[str, str]:
    """Counts and the length, for a subtitle; `rows` are of one context length."""
    n = drawing.sample_size(rows).replace("targets", "answer tokens").replace("documents", "haystacks")
    return n, f"{rows['context_length'].iloc[0]:,} tokens of context"


def retrieval_figure(retrieval: pd.DataFrame, labels: Mapping[str, drawing.ModelLabel]) -> Figure:
    """How much less the answer costs with the needle, by its depth: a line a model, all on one scale."""
    figure, (ax,) = drawing.panels(1, 2.9)
    models = list(dict.fromkeys(retrieval["model"]))
    ends = []
    for place, model in enumerate(models):
        line = retrieval[retrieval["model"] == model].sort_values("depth")
        label = labels[model]
        depths = line["depth"] + _STEP_ASIDE * drawing.beside(place, len(models))
        ends.append(drawing.draw_line(ax, depths, line, "retrieval_gain", label.style.measured, label.text))
    ax.axhline(0, color=drawing.BLACK, linewidth=0.6)
    depths = sorted(retrieval["depth"].unique())
    ax.set_xticks(depths, [f"{depth:g}" for depth in depths])
    ax.set_xlabel("depth of the needle (0: where the context begins, 1: just before the question)")
    ax.set_ylabel("gain from the needle\n(nats a token)")
    drawing.label_line_ends(ax, ends)
    parts = *_sample(retrieval), drawing.common_size(labels[model] for model in models), OVER_HAYSTACKS
    drawing.put_title(figure, "By how much does a needle make the tokens of its answer cheaper?", *parts)
    return figure


def found_figure(found: pd.DataFrame, label: drawing.ModelLabel) -> Figure:
    """For how much of the answer the very token of the needle is among the k, a line a rule beside its null.

    A choice at random is drawn as what it has on average, chance.
    """
    figure, (ax,) = drawing.panels(1, 2.9)
    ends = []
    for (rule, far_context), line in found.groupby(["rule", "far_context"]):
        is_null = far_context == OTHER_DOCUMENT
        if rule == "random" or (is_null and rule in CONTROLS):
            continue
        line = line.sort_values("k")
        look = drawing.rule_style(str(rule))
        x = line["k"] * (_BESIDE if is_null else 1 / _BESIDE)
        words = f"{drawing.rule_text(str(rule))}{': null' if is_null else ''}"
        ends.append(
            drawing.draw_line(ax, x, line, "hit_share", look.null if is_null else look.measured, words)
        )
    chance = found.groupby("k")["chance_hit_share"].mean()
    ax.plot(chance.index, chance, color=drawing.GREY, linestyle=":")
    ends.append(drawing.LineEnd(chance.index[-1], chance.iloc[-1], "chance", drawing.GREY))
    drawing.tokens_axis(ax, found["k"].unique())
    ax.set_ylim(-0.03, 1.03)
    ax.set_ylabel("answer tokens whose copy in the\nneedle is among the k (share)")
    drawing.label_line_ends(ax, ends)
    title = "How often is the needle's copy of an answer token among the k selected?"
    drawing.put_title(figure, title, *_sample(found), label.text, label.size, OVER_HAYSTACKS)
    return figure
