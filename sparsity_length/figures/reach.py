"""How far a pretrained model reads: what a told fact is worth, by the gap of position IDs to its question.

A document tells a fact and asks for it; another, equal in length, asks without telling (plant_needles.py).
The near tokens, with question and answer, are moved away by a gap of position IDs (length_interference.py,
placements own:N@START), and nothing else changes. What telling is worth at a gap is the answer's loss not
told minus that told, both there; the *share kept* is this over the same at gap 0, a ratio of sums. Clusters
are the texts around the facts. Plan and rules: analysis/LOG.md, 2026-11-29.

Shapes: X resamples.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from sparsity_length.cli import InputError
from sparsity_length.figures import drawing
from sparsity_length.figures.read import (
    Row,
    interval_columns,
    interval_of,
    interval_over_documents,
    mean_columns,
    rows_where,
    summarized,
)
from sparsity_length.measuring.settings import Placement
from sparsity_length.results.read import Results
from sparsity_length.results.schemas import OWN
from sparsity_length.results.statistics import (
    Interval,
    decided,
    difference_of_ratios,
    interval_of_statistic,
)
from sparsity_length.text.folder import NEEDLES_FILE

REACH_FILE = "reach.parquet"
TEMPLATES = ("number", "word", "color")
TOGETHER = "together"
PLAIN = "plain"
YARN = "yarn:2"
STAIR = "stair:512:50"
TRAINED_POSITIONS = {"SmolLM2-135M-Instruct": 8192, "Gemma-3-270M": 32768}
NUM_TOKENS = 64
"""Tokens of a document, whose last ID is the gap plus this number minus 1."""
HALF = 0.5
"""A gap is read if the share kept is above it; a template counts if as many answers are right at gap 0."""
ITEM = ["model", "rope", "template", "document_id", "gap"]


def reach_items(needles: Path, measured: Sequence[Path]) -> pd.DataFrame:
    """A row per model, scaling of RoPE, told fact and gap.

    Args:
        needles: data folder of plant_needles.py, one depth.
        measured: results of length_interference.py of its documents, plain or with --rope.

    Returns:
        `ITEM` (document_id: of the text around the fact), loss_told and loss_not_told (of the whole answer,
        nats), is_right_told and is_right_not_told (whether each of its tokens is the top prediction).
        InputError if not all tokens of an answer were measured, or a told fact is not among distant tokens.
    """
    planted = pd.read_parquet(needles / NEEDLES_FILE)
    tables = []
    for results in measured:
        rows = Results(results).frame("length_interference").merge(planted, on="document_id")
        settings = Results(results).settings("length_interference")
        # Targets before the answer are the question's.
        is_answer = rows["target_position"] >= rows["answer_position"]
        rows = rows[is_answer & rows["placement"].str.startswith(OWN)]
        placements = [Placement.parse(name) for name in rows["placement"]]
        num_distant = np.array([placement.num_distant for placement in placements])
        # Near tokens end before the last token, a target; distant ones stand right before them.
        near = rows["model"].map(lambda model, settings=settings: settings[model]["near_context_length"])
        near_start = rows["context_length"] - 1 - near
        is_distant = (rows["needle_position"] >= near_start - num_distant) & (
            rows["needle_position"] + rows["num_needle_tokens"] <= near_start
        )
        if not (is_distant | rows["depth"].isna()).all():
            raise InputError(f"{results}: a fact is not told among the distant tokens; place more of them")
        rows = rows.assign(
            rope=rows["model"].map(lambda model, settings=settings: settings[model].get("rope", PLAIN)),
            gap=[placement.gap for placement in placements],
            is_told=rows["depth"].notna(),
            document_id=rows["source_document_id"],
        )
        answers = rows.groupby([*ITEM, "is_told"], as_index=False).agg(
            loss=("loss", "sum"),
            is_right=("is_top", "all"),
            num_measured=("loss", "size"),
            num_tokens=("num_answer_tokens", "first"),
        )
        if not (answers["num_measured"] == answers["num_tokens"]).all():
            raise InputError(
                f"{results}: some answers have more tokens; measure --targets-per-chunk"
                f" {answers['num_tokens'].max()}"
            )
        told, not_told = (
            rows_where(answers, is_told=is_told)[[*ITEM, "loss", "is_right"]] for is_told in (True, False)
        )
        tables.append(told.merge(not_told, on=ITEM, suffixes=("_told", "_not_told")))
    return pd.concat(tables, ignore_index=True)


def answered_templates(items: pd.DataFrame, model: str) -> list[str]:
    """The templates of which the plain model answers half or more at gap 0; the others are left out."""
    at_0 = rows_where(items, model=model, rope=PLAIN, gap=0)
    right = at_0.groupby("template", sort=False)["is_right_told"].mean()
    return [str(template) for template in right.index[right >= HALF]]


def with_worth(items: pd.DataFrame) -> pd.DataFrame:
    """The items with what telling is worth to each, nats: `worth` at its gap, `worth_at_0` at gap 0."""
    found = items.assign(worth=items["loss_not_told"] - items["loss_told"])
    at_0 = found.loc[found["gap"] == 0, ["model", "rope", "template", "document_id", "worth"]]
    return found.merge(at_0.rename(columns={"worth": "worth_at_0"}))


def curves(items: pd.DataFrame) -> pd.DataFrame:
    """A row per model, scaling, template (and `TOGETHER`) and gap, for templates that the model can answer.

    Returns:
        model, rope, template, gap, counts (a target is an item); share_kept, right_told and right_not_told
        (shares of answers), with intervals; loss_told and loss_not_told (means per answer, nats).
    """

    def numbers(at: pd.DataFrame) -> Row:
        kept = interval_over_documents(at["document_id"], at["worth"], at["worth_at_0"])
        losses = at[["loss_told", "loss_not_told"]].mean().to_dict()
        return {
            **interval_columns("share_kept", kept),
            **mean_columns(at, "right_told", "right_not_told"),
            **losses,
        }

    worth = with_worth(items).rename(columns=lambda name: name.removeprefix("is_"))
    parts = (
        rows_where(worth, model=model, template=template)
        for model in items["model"].unique()
        for template in answered_templates(items, model)
    )
    answered = pd.concat([worth[:0], *parts])
    choices = pd.concat([answered, answered.assign(template=TOGETHER)])
    return summarized(choices, ["model", "rope", "template", "gap"], numbers, sort=False)


def of_curve(table: pd.DataFrame, model: str, rope: str, template: str = TOGETHER) -> pd.DataFrame:
    """The rows of `curves` of one model, scaling and template, by gap."""
    return rows_where(table, model=model, rope=rope, template=template).set_index("gap").sort_index()


def kept_at(curve: pd.DataFrame, gap: int) -> Interval:
    """The share kept at a gap of `of_curve`."""
    return interval_of(curve.loc[[gap]].iloc[0], "share_kept")


def reach(curve: pd.DataFrame) -> int | None:
    """The largest gap up to which every tested one is read; None if gap 0 is not. Takes `of_curve`."""
    is_read = (curve["share_kept_low"] > HALF).cummin()
    return int(curve.index[is_read].max()) if is_read.any() else None


def read_again(curve: pd.DataFrame) -> list[int]:
    """The gaps beyond the reach that are read although a smaller one is not. Takes `of_curve`."""
    is_read = curve["share_kept_low"] > HALF
    return curve.index[is_read & ~is_read.cummin()].tolist()


def reads_less_than_trained(table: pd.DataFrame, model: str) -> tuple[str, int]:
    """Decide claim 1, at the last gap whose IDs are all trained: the verdict, and that gap."""
    plain = of_curve(table, model, PLAIN)
    last = int(plain.index[plain.index + NUM_TOKENS <= TRAINED_POSITIONS[model]].max())
    share = kept_at(plain, last)
    return decided(supported=share.high < HALF, refuted=share.low > HALF), last


def makes_readable(
    items: pd.DataFrame, table: pd.DataFrame, model: str, rope: str
) -> tuple[str, int, Interval] | None:
    """Decide claim 2: the verdict, the smallest gap that is unread plain, share kept with `rope` minus plain.

    None if no gap is clearly unread, or nothing was measured with `rope`, YaRN or stair positions.
    """
    plain = of_curve(table, model, PLAIN)
    unread = plain.index[plain["share_kept_high"] < HALF]
    if not len(unread) or rope not in set(items["rope"][items["model"] == model]):
        return None
    gap = int(unread.min())
    counted = with_worth(items[items["template"].isin(answered_templates(items, model))])
    scaled, plainly = (rows_where(counted, model=model, gap=gap, rope=of_rope) for of_rope in (rope, PLAIN))
    both = scaled.merge(plainly, on=["template", "document_id"], suffixes=("", "_plain"))
    sums = both.groupby("document_id")[["worth", "worth_at_0", "worth_plain", "worth_at_0_plain"]].sum()
    lead = interval_of_statistic(list(sums.to_numpy().T), difference_of_ratios)
    share = kept_at(of_curve(table, model, rope), gap)
    return decided(supported=share.low > HALF and lead.low > 0, refuted=share.high < HALF), gap, lead


def verdicts(items: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Sentences per model: its reach by scaling and template, and the two verdicts."""
    sentences = []
    for model in items["model"].unique():
        answered = answered_templates(items, model)
        sentences.append(
            f"{model} answers half of the questions or more at gap 0: {', '.join(answered) or None}"
        )
        if not answered:
            continue
        for rope in items["rope"][items["model"] == model].unique():
            found = {name: reach(of_curve(table, model, rope, name)) for name in (*answered, TOGETHER)}
            words = ", ".join(f"{template} {gap}" for template, gap in found.items())
            sentences.append(f"{model}, {rope}, reach in position IDs: {words}")
        if model in TRAINED_POSITIONS:
            word, last = reads_less_than_trained(table, model)
            sentences.append(f"{model} reads less far than it was trained (gap {last:,}): {word}")
        for rope in (YARN, STAIR):
            if readable := makes_readable(items, table, model, rope):
                word, gap, lead = readable
                sentences.append(f"{model}, {rope} makes the gap {gap:,} readable: {word}, {lead} over plain")
    return sentences


LOOKS = {
    PLAIN: (drawing.solid(drawing.BLACK), "plain"),
    YARN: (drawing.solid(drawing.BLUE, "s"), "YaRN × 2"),
    STAIR: (drawing.solid(drawing.ORANGE, "D"), "stair"),
}


def _reaches(table: pd.DataFrame, model: str) -> str:
    """How far a model reads, plain and with YaRN, as the figure's title says it."""
    words = {}
    for rope in (PLAIN, YARN):
        curve = of_curve(table, model, rope)
        gap = reach(curve)
        again = "".join(f" and again at {far:,}" for far in read_again(curve))
        further = " or more" if gap == curve.index.max() else again
        words[rope] = "no" if gap is None else f"{gap:,}{further}"
    with_yarn = f", with YaRN {words[YARN]}" if len(of_curve(table, model, YARN)) else ""
    return f"{model.partition('-')[0]} reads facts up to {words[PLAIN]} position IDs away{with_yarn}"


def reach_figure(table: pd.DataFrame) -> Figure:
    """Share kept against the gap, a panel per model; each template in a thin line."""
    models = list(table["model"].unique())
    figure, axes = drawing.panels(len(models), 2.6)
    for ax, model in zip(axes, models, strict=True):
        for rope, (look, words) in LOOKS.items():
            for template in table["template"][table["model"] == model].unique():
                line = of_curve(table, model, rope, template)
                if template == TOGETHER:
                    drawing.draw_line(ax, line.index, line, "share_kept", look, words, scale=100)
                else:
                    thin = {"linewidth": 0.6, "marker": "", "alpha": 0.5}
                    ax.plot(line.index, 100 * line["share_kept"], **look | thin)
        if trained := TRAINED_POSITIONS.get(model):
            drawing.shade(ax, 0, trained - NUM_TOKENS)  # where the last token has a trained ID
        drawing.name_level(ax, 100 * HALF, "")
        ax.set(title=f"{model}, trained to {trained:,}" if trained else model, xlabel="gap, position IDs")
        ax.xaxis.set_major_formatter("{x:,.0f}")
    axes[0].set(ylabel="worth of the fact (% of gap 0)")
    drawing.put_title(
        figure,
        f"Over all templates, {'; '.join(_reaches(table, model) for model in models)}",
        f"thick: all templates, {drawing.ranged(table['num_documents'])} texts each; thin: each template",
        "bars: 95% over texts",
        "shaded: all IDs trained; dotted: one half; a gap is read whose bar is above it",
    )
    return figure
