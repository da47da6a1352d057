"""Needle in a haystack: how well answers are retrieved, and whether influential tokens are the needle's.

Targets are the tokens of the answer at the end of each planted document (`pipeline/plant_needles.py`). A
needle is retrieved where they cost less than in the control, the same haystack and question without the
needle. The truth for S_k is the answer's tokens in the needle:

    precision   how many of the k tokens are among them
    recall      how many of them are among the k tokens
    hit_share   targets whose k tokens hold the very token of the needle that is predicted

Beside each stands chance, its exact mean for k far tokens at random, and the same rule's choice in the null,
at the same positions of another document. Intervals are over haystacks, not over planted documents.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.document_intervals import interval_columns, interval_over_documents
from analysis.paired_targets import joined_on_common
from pipeline.errors import InputError
from pipeline.results.folder import read_artefact, read_settings
from pipeline.results.names import OWN
from pipeline.text.needles import read_needles

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
