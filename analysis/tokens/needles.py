"""Needle in a haystack: how well answers are retrieved, and whether influential tokens are the needle's.

Targets are the tokens of the answer at the end of each planted document (`pipeline/plant_needles.py`). A
needle is retrieved where they cost less than in the control, the same haystack and question without the
needle. The truth for S_k is the answer's tokens in the needle:

    precision   how many of the k tokens are among them
    recall      how many of them are among the k tokens
    hit_share   targets whose k tokens hold the very token of the needle that is predicted

Beside each stands chance, its exact mean for k far tokens at random, and the same rule's choice in the null,
at the same positions of another document. Intervals are over haystacks, not over planted documents.

The drawing of needles in haystacks: tables of `analysis.tokens.needles` in, a Figure out.

Solid and filled is what was measured, dashed and hollow the null: the same rule's choice at the same
positions of another document. Bars are 95 % intervals over haystacks.
"""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.drawing import (
    BLACK,
    GREY,
    LineEnd,
    ModelLabel,
    draw_line,
    is_above,
    label_line_ends,
    panels,
    percent,
    put_title,
    rule_style,
    rule_text,
    sample_size,
    tokens_axis,
)
from analysis.read import interval_columns, interval_over_documents, joined_on_common
from pipeline.cli import InputError
from pipeline.measuring.rules import CONTROLS, RULES
from pipeline.results.read import read_artefact, read_settings
from pipeline.results.schemas import OTHER_DOCUMENT, OWN
from pipeline.text.planting import read_needles

_OF_NEEDLES = [
    "document_id", "source_document_id", "context_length", "depth", "needle_answer_positions",
    "answer_position",
]  # fmt: skip
MEASURES = ["precision", "recall", "hit_share"]


def needle_folders(folder: Path) -> list[Path]:
    """The length-* folders of `plant_needles --out`, shortest first.

    Raises:
        InputError: there is none.
    """
    found = sorted(folder.glob("length-*"), key=lambda path: int(path.name.removeprefix("length-")))
    if not found:
        raise InputError(f"{folder} holds no folder length-*; pipeline/plant_needles.py writes them")
    return found


def answers(folder: Path, artefact: str, columns: Sequence[str]) -> pd.DataFrame:
    """The targets of all lengths that are tokens of an answer, with what is true of their needle.

    Args:
        folder: of `plant_needles`.
        artefact: a name of `SCHEMAS`, of the results in length-*/results.
        columns: of it, beside model, document_id and target_position.

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
        stage = "influential_tokens" if artefact == "influential_tokens" else "loss_differences"
        short = {model: made["short_context_length"] for model, made in read_settings(results, stage).items()}
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
    pairs["retrieval_gain"] = pairs["long_context_loss_of_control"] - pairs["long_context_loss"]
    pairs["is_retrieved"] = (pairs["long_context_loss"] < np.log(2)).astype("float64")
    named = {
        "loss": "long_context_loss", "control_loss": "long_context_loss_of_control",
        "retrieval_gain": "retrieval_gain", "retrieved_share": "is_retrieved",
    }  # fmt: skip
    return _means(pairs, ["model", "context_length", "depth"], named)


def found_needles(folder: Path, ks: Sequence[int] | None = None) -> pd.DataFrame:
    """Whether S_k is the needle's answer: a row a model, rule, context length and k.

    Only targets whose needle lies in the far context as a whole: one in the short context needs no finding.

    Args:
        folder: of `plant_needles`, with results of influential_tokens.
        ks: numbers of influential tokens; the powers of two up to all that were selected where None.

    Returns:
        model, rule, context_length, k, far_context (own, or the null), num_targets, num_documents
        (haystacks), then with intervals each of `MEASURES` and, as chance_*, its mean at random.
    """
    columns = ["rule", "far_context", "rank", "context_position"]
    rows = answers(folder, "influential_tokens", columns)
    rows = rows[rows["depth"].notna()]
    is_far = rows["needle_answer_positions"].map(max) < rows["num_far_tokens"]
    rows = rows[is_far]
    if rows.empty:
        raise InputError(f"in no document of {folder} does the needle lie before the short context")
    own_place = [
        places[index]
        for places, index in zip(rows["needle_answer_positions"], rows["answer_token"], strict=True)
    ]
    in_needle = [
        position in places
        for position, places in zip(rows["context_position"], rows["needle_answer_positions"], strict=True)
    ]
    rows = rows.assign(
        in_needle=in_needle,
        is_hit=rows["context_position"] == own_place,
        num_answer_tokens=rows["needle_answer_positions"].map(len),
    )
    studied = [2**power for power in range(int(rows["rank"].max()).bit_length())] if ks is None else ks
    return pd.concat([_found(rows[rows["rank"] <= k], k) for k in studied], ignore_index=True)


def _found(first: pd.DataFrame, k: int) -> pd.DataFrame:
    """`found_needles` of one k; `first` are the k tokens of every target."""
    target = [
        "model", "rule", "context_length", "far_context", "document_id", "source_document_id",
        "target_position", "num_far_tokens", "num_answer_tokens",
    ]  # fmt: skip
    sums = first.groupby(target, as_index=False)[["in_needle", "is_hit"]].sum()
    num_far, num_answer = sums["num_far_tokens"], sums["num_answer_tokens"]
    sums = sums.assign(
        precision=sums["in_needle"] / k,
        recall=sums["in_needle"] / num_answer,
        hit_share=sums["is_hit"].astype("float64"),
        chance_precision=num_answer / num_far,
        chance_recall=k / num_far,
        chance_hit_share=k / num_far,
    )
    names = [name for measure in MEASURES for name in (measure, f"chance_{measure}")]
    table = _means(
        sums, ["model", "rule", "context_length", "far_context"], dict(zip(names, names, strict=True))
    )
    return table.assign(k=k)


def _means(rows: pd.DataFrame, keys: list[str], columns: dict[str, str]) -> pd.DataFrame:
    """A row a group: sample sizes, and the mean of each column under its new name, with its interval."""
    table = []
    for values, group in rows.groupby(keys):
        assert isinstance(values, tuple)
        row: dict[Hashable, object] = dict(zip(keys, values, strict=True))
        haystacks = group["source_document_id"]
        row |= {"num_targets": len(group), "num_documents": haystacks.nunique()}
        for name, column in columns.items():
            row |= interval_columns(name, interval_over_documents(haystacks, group[column]))
        table.append(row)
    return pd.DataFrame(table)


def retrieval_sentences(retrieval: pd.DataFrame) -> list[str]:
    """What `retrieval_losses` says, a sentence a model: where the needle clearly helps, and where most."""
    sentences = []
    for model, rows in retrieval.groupby("model"):
        num_helped = int((rows["retrieval_gain_low"] > 0).sum())
        best = rows.sort_values("retrieval_gain").to_dict("records")[-1]
        verdict = (
            "costs clearly less with the needle at no length and depth"
            if num_helped == 0
            else f"costs clearly less with the needle at {num_helped} of {len(rows)} lengths and depths"
        )
        sentences.append(
            f"{model}: the answer {verdict}; most at {best['context_length']} tokens and depth"
            f" {best['depth']:g}, where it costs {best['loss']:.3f} nats a token, {best['control_loss']:.3f}"
            f" without the needle, and {best['retrieved_share']:.0%} of its tokens are predicted with more"
            " than half of the probability. A loss that any number in sight would lower is no retrieval; that"
            " share is."
        )
    return sentences


def found_sentences(found: pd.DataFrame) -> list[str]:
    """What `found_needles` says of each model, rule and length at its largest k."""
    rows = found[(found["k"] == found["k"].max()) & (found["far_context"] == OWN)]
    sentences = []
    for row in rows.to_dict("records"):
        is_clear = row["recall_low"] > row["chance_recall_high"]
        verdict = "above chance" if is_clear else "not clearly above chance"
        sentences.append(
            f"{row['model']}, {row['rule']}, {row['context_length']} tokens, k = {row['k']}: recall of the"
            f" needle's answer {row['recall']:.3f} [{row['recall_low']:.3f}, {row['recall_high']:.3f}],"
            f" {verdict} ({row['chance_recall']:.3f}); precision {row['precision']:.3f}"
            f" ({row['chance_precision']:.3f}); n = {row['num_targets']:,} targets."
        )
    return sentences


OVER_HAYSTACKS = "bars: 95 % over haystacks"
_TOLD_AT_K = 4
_STEP_ASIDE = 0.012  # of the depth, between models
_BESIDE = 1.04  # factor on a logarithmic axis between a rule's bars and its null's, which may be equal


def _sample(rows: pd.DataFrame) -> str:
    return sample_size(rows).replace("targets", "answer tokens").replace("documents", "haystacks")


def retrieval_title(retrieval: pd.DataFrame) -> str:
    """From where the needle clearly helps, how much at most, and whether its answer is retrieved.

    Args:
        retrieval: `needles.retrieval_losses`, one context length.
    """
    helped = retrieval[retrieval["retrieval_gain_low"] > 0]
    best = retrieval["retrieved_share"].max()
    retrieved = f"at best {percent(best)} of them are retrieved" if best else "none is retrieved"
    if helped.empty:
        return f"A needle makes the tokens of its answer clearly cheaper from no depth; {retrieved}"
    where = "every depth" if len(helped) == len(retrieval) else "some depths"
    most = helped["retrieval_gain"].max()
    return (
        f"A needle makes the tokens of its answer cheaper from {where}, by at most {most:.2f} nats;"
        f" {retrieved}"
    )


def retrieval_figure(retrieval: pd.DataFrame, labels: Mapping[str, ModelLabel]) -> Figure:
    """How much less the answer costs with the needle, by its depth: a line a model, all on one scale.

    Args:
        retrieval: `needles.retrieval_losses`, one context length.
        labels: of the models.
    """
    figure, (ax,) = panels(1, 2.9)
    ends = []
    models = list(dict.fromkeys(retrieval["model"]))
    for index, model in enumerate(models):
        line, look = retrieval[retrieval["model"] == model].sort_values("depth"), labels[model].style
        depths = line["depth"] + _STEP_ASIDE * (index - (len(models) - 1) / 2)
        ends.append(draw_line(ax, depths, line, "retrieval_gain", look.measured, labels[model].text))
    ax.axhline(0, color=BLACK, linewidth=0.6)
    depths = sorted(retrieval["depth"].unique())
    ax.set_xticks(depths, [f"{depth:g}" for depth in depths])
    ax.set_xlabel("depth of the needle (0: where the context begins, 1: just before the question)")
    ax.set_ylabel("gain from the needle\n(nats a token)")
    label_line_ends(ax, ends)
    sizes = dict.fromkeys(labels[model].size for model in models)
    told = ["retrieved: more than half of the probability", OVER_HAYSTACKS]
    sample = f"{_sample(retrieval)} a point"
    put_title(figure, retrieval_title(retrieval), sample, _length(retrieval), *sizes, *told)
    return figure


def _length(rows: pd.DataFrame) -> str:
    return f"{rows['context_length'].iloc[0]:,} tokens of context"


def found_title(found: pd.DataFrame) -> str:
    """How often a rule's first tokens hold the very token of the needle, beside its null and chance.

    Of four tokens, or the largest k below; of the best rule among those that do not see the answer, where
    there is one. It says what is shown where that is not clearly above the null, or has no null.

    Args:
        found: `needles.found_needles`, one model and length.
    """
    k = _told_k(found)
    rows = found[(found["k"] == k) & ~found["rule"].isin(CONTROLS)]
    own, null = (rows[rows["far_context"] == far].set_index("rule") for far in (OWN, OTHER_DOCUMENT))
    own = own[own.index.isin(null.index)].sort_values("hit_share")
    blind = own[[rule in RULES and RULES[rule].sees != "answer" for rule in own.index]]
    best = (own if blind.empty else blind).tail(1)
    if best.empty or not is_above(best["hit_share_low"].iloc[0], null["hit_share_high"][best.index[0]]):
        return "How often the needle's copy of an answer token is among the selected"
    hits, chance = (best[name].iloc[0] for name in ("hit_share", "chance_hit_share"))
    return (
        f"For {percent(hits)} of the answer's tokens the needle's copy is among the first {k} of"
        f" “{rule_text(str(best.index[0]))}”; null {percent(null['hit_share'][best.index[0]])},"
        f" chance {percent(chance)}"
    )


def _told_k(found: pd.DataFrame) -> int:
    ks = found["k"].unique()
    return int(max((k for k in ks if k <= _TOLD_AT_K), default=min(ks)))


def found_against_k(found: pd.DataFrame, measure: str, ax: Axes) -> list[LineEnd]:
    """Precision, recall or hits of S_k against k, a line a rule beside its null; what each is called.

    A choice at random is drawn as what it has on average, chance.

    Args:
        found: `needles.found_needles`, one model and length.
        measure: one of `needles.MEASURES`.
        ax: to draw on.
    """
    ends = []
    for (rule, far_context), line in found.groupby(["rule", "far_context"]):
        is_null = far_context == OTHER_DOCUMENT
        if rule == "random" or (is_null and rule in CONTROLS):
            continue
        line, look = line.sort_values("k"), rule_style(str(rule))
        x = line["k"] * (_BESIDE if is_null else 1 / _BESIDE)
        words = f"{rule_text(str(rule))}{': null' if is_null else ''}"
        ends.append(draw_line(ax, x, line, measure, look.null if is_null else look.measured, words))
    chance = found.groupby("k")[f"chance_{measure}"].mean()
    ax.plot(chance.index, chance, color=GREY, linestyle=":")
    ends.append(LineEnd(chance.index[-1], chance.iloc[-1], "chance", GREY))
    tokens_axis(ax, found["k"].unique())
    ax.set_ylim(-0.03, 1.03)
    return ends


def found_figure(found: pd.DataFrame, label: ModelLabel) -> Figure:
    """For how much of the answer the very token of the needle is among the k, a line a rule.

    Args:
        found: `needles.found_needles`, one model and length.
        label: of the model.
    """
    figure, (ax,) = panels(1, 2.9)
    ends = found_against_k(found, "hit_share", ax)
    ax.set_ylabel("answer tokens whose copy in the\nneedle is among the k (share)")
    label_line_ends(ax, ends)
    size = label.size
    parts = _sample(found), _length(found), label.text, size, OVER_HAYSTACKS
    put_title(figure, found_title(found), *parts)
    return figure
