"""Tell how much context a text needs: what a window of w tokens would lose, and which window keeps 90 %.

  python analysis/needed_context.py --results runs/demo/results --figures runs/demo/figures

Reads what loss_differences --context-lengths measured. The longest context is worth what it gives more than
the shortest, in nats of loss, and by the divergence, which does not see the answer. Of that worth a window of
w tokens keeps

    kept(w) = (value(shortest) - value(w)) / (value(shortest) - value(longest))

Prints, and writes as needed_context.parquet (pipeline/RESULTS.md), what each w loses, and the least w that
keeps 90, 95 and 99 %; draws these windows. With --data it does so for each site that the documents' URLs
name, and for each kind of predicted token (analysis/tokens/kinds.py), too. Intervals are over documents.

A window here is all that a prediction can see. Sliding-window attention of w tokens in several layers sees
further, so it loses at most this much, if the model has learnt to do without.

on your own texts and model, measured first, in one command:
  TEXT='my_documents/*.jsonl' MODEL=HuggingFaceTB/SmolLM2-135M make needed
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.cli import InputError, folder_path, logger, stage_parser

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.drawing import ModelLabel
    from analysis.read import MeasuredText

KEPT = (90, 95, 99)
"""Percent of the worth."""
ALL = "all"
OTHERS = "other sources"
_VALUE = {"loss": "mean_loss", "divergence": "mean_divergence"}
"""Criterion -> the column of length_losses."""


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--results", type=folder_path, required=True, help="a results folder with length_losses")
    add("--figures", type=folder_path, required=True, help="where the table and the figure are written")
    add(
        "--data",
        type=folder_path,
        help="the tokenized data that was measured, to tell sources and kinds apart",
    )
    return program


def main(arguments: argparse.Namespace) -> None:
    """Print the table, write it and draw it."""
    # Imported late, for a --help at once.
    from analysis.drawing import model_labels, save
    from analysis.read import MeasuredText, interval_cell, interval_of, write_derived_table
    from pipeline.results.read import read_artefact
    from pipeline.results.table import as_table

    losses = read_artefact(arguments.results, "length_losses")
    sources = {}
    kinds = None
    if arguments.data is not None:
        if losses["losses"].isna().any():
            raise InputError(f"{arguments.results} has no losses of single targets: measure anew for --data")
        text = MeasuredText.open(arguments.results, "length_losses", arguments.data)
        documents = text.data.evaluation_documents()
        kinds = of_kinds(losses, text)
        sources = {document.document_id: site_of(document.url) for document in documents if document.url}
    table = needed_context(losses, sources, kinds)
    group = ["model", "source", "criterion"]
    rows: list[list[Any]] = []
    for row in table.drop_duplicates(group).to_dict("records"):
        windows = [interval_of(row, f"window_{percent}") for percent in KEPT]
        cells = [f"{window.estimate:.0f} [{window.low:.0f}, {window.high:.0f}]" for window in windows]
        cells = [cell.replace("nan [nan, nan]", "-") for cell in cells]
        rows.append([*(row[name] for name in group), interval_cell(row, "lost"), *cells])
    names = [*group, "worth, nats", *(f"w keeps {percent} %" for percent in KEPT)]
    sys.stdout.write(as_table(names, rows, num_left_columns=3))
    of_losses = table[(table["criterion"] == "loss") & (table["source"] == ALL)]
    rows = [
        [row["model"], row["context_length"], interval_cell(row, "lost")]
        for row in of_losses.to_dict("records")
    ]
    sys.stdout.write("\nWhat a window of w tokens loses, nats of loss:\n")
    sys.stdout.write(as_table(["model", "w", "lost"], rows, num_left_columns=1))
    arguments.figures.mkdir(parents=True, exist_ok=True)
    write_derived_table(table, "needed_context", arguments.figures)
    has_worth = table[table["criterion"] == "loss"].dropna(subset="window_90")[group[:2]].drop_duplicates()
    if has_worth.empty:
        logger.warning("no model's longest context is clearly worth more than its shortest: no figure")
        return
    labels = model_labels(arguments.results, "length_losses")
    save(windows_figure(table.merge(has_worth), labels), arguments.figures, "needed_context")


def site_of(url: str) -> str:
    """The host that a URL names, without www; of another text, such as a corpus' name, all of it."""
    return url.partition("://")[2].partition("/")[0].removeprefix("www.") or url


def of_kinds(length_losses: "pd.DataFrame", text: "MeasuredText") -> "pd.DataFrame":
    """Rows of length_losses, those of each kind of predicted token apart; the kind stands in `source`."""
    import pandas as pd

    from analysis.tokens.kinds import categories_of_targets

    chunk = ["document_id", "chunk_index"]
    settings = {**text.settings, "short_context_length": length_losses["context_length"].min()}
    categories = categories_of_targets(replace(text, settings=settings))
    categories["place"] = categories.groupby(chunk).cumcount()
    targets = length_losses.assign(place=length_losses["num_targets"].map(range))
    targets = targets.explode(["place", "losses", "divergences"]).merge(categories, on=[*chunk, "place"])
    values = targets[["losses", "divergences"]].astype("float64").to_numpy().T
    targets["mean_loss"], targets["mean_divergence"] = values
    rows = []
    for aspect in ("word_kind", "repetition"):
        of_kind = targets.groupby(["model", *chunk, "context_length", aspect])
        means = of_kind[["mean_loss", "mean_divergence"]].mean().assign(num_targets=of_kind.size())
        rows.append(means.reset_index().rename(columns={aspect: "source"}))
    return pd.concat(rows, ignore_index=True)


def needed_context(
    length_losses: "pd.DataFrame", sources: Mapping[str, str] = {}, kinds: "pd.DataFrame | None" = None
) -> "pd.DataFrame":
    """What each window loses: a row a model, source, criterion and context length.

    Args:
        length_losses: the artefact.
        sources: document ID -> its source. One of fewer than `FEWEST_RESAMPLED` measured documents is put
            together with the others of that kind.
        kinds: of `of_kinds`; a kind in fewer than `FEWEST_RESAMPLED` documents is left out.

    Returns:
        The columns of the artefact `needed_context`.

    Raises:
        InputError: fewer than two context lengths were measured.
    """
    import numpy as np
    import pandas as pd

    from analysis.read import NO_INTERVAL, interval_columns
    from pipeline.results.statistics import (
        FEWEST_RESAMPLED,
        difference_of_ratios,
        interval_of_statistic,
        ratio_of_sums,
    )

    grouped = [length_losses.assign(source=ALL)]
    if sources:
        source = length_losses["document_id"].map(sources).fillna(OTHERS)
        num_documents = length_losses["document_id"].groupby(source).nunique()
        few = source.map(num_documents) < FEWEST_RESAMPLED
        grouped.append(length_losses.assign(source=source.where(~few, OTHERS)))
    if kinds is not None:
        num_documents = kinds.groupby("source")["document_id"].transform("nunique")
        grouped.append(kinds[num_documents >= FEWEST_RESAMPLED])
    rows: list[dict[Hashable, Any]] = []
    for (of_source, model), chunks in pd.concat(grouped).groupby(["source", "model"], sort=False):
        has_worth = True  # where the loss says no, the divergence tells of harm
        for criterion, column in _VALUE.items():
            if chunks[column].isna().any():
                continue
            weighed = chunks.assign(value=chunks[column].astype("float64") * chunks["num_targets"])
            weighed = weighed.groupby(["document_id", "context_length"])[["value", "num_targets"]].sum()
            values_DJ = weighed["value"].unstack()
            num_targets_D = weighed["num_targets"].unstack().iloc[:, -1]
            lengths_J = np.array(values_DJ.columns)
            sums_JD = values_DJ.to_numpy().T
            if len(lengths_J) < 2:
                raise InputError(
                    f"model '{model}' was measured with {lengths_J[0]} tokens of context only; name several"
                    " --context-lengths of loss_differences"
                )
            longest = sums_JD[-1], num_targets_D.to_numpy()
            lost = [difference_of_ratios(longest, (sums_D, longest[1])) for sums_D in sums_JD]
            has_worth &= bool(lost[0].low > 0)  # NaN of a single document: it says nothing of others
            of_all: dict[Hashable, Any] = {
                "model": model,
                "source": of_source,
                "criterion": criterion,
                "num_targets": int(num_targets_D.sum()),
                "num_documents": len(num_targets_D),
            }
            for percent in KEPT:
                keeping = partial(windows_keeping, lengths_J=lengths_J, percent=percent)
                window = interval_of_statistic(list(sums_JD), keeping) if has_worth else NO_INTERVAL
                of_all |= interval_columns(f"window_{percent}", window)
            for length, interval, sums_D in zip(lengths_J.tolist(), lost, sums_JD, strict=True):
                share = NO_INTERVAL
                if has_worth:
                    share = ratio_of_sums(sums_D - longest[0], sums_JD[0] - longest[0])
                values = interval_columns("lost", interval) | interval_columns("lost_share", share)
                rows.append(of_all | {"context_length": length} | values)
    return pd.DataFrame(rows)


def windows_keeping(values_XJ: "np.ndarray", lengths_J: "np.ndarray", percent: float) -> "np.ndarray":
    """The least context that keeps so much of what the longest gives more than the shortest: float64 [X].

    Between measured lengths by straight lines in log2 of the length; NaN where the longest gives no more.

    Args:
        values_XJ: losses or divergences, at J ascending lengths.
    """
    import numpy as np

    places_X = np.arange(len(values_XJ))
    log2_J = np.log2(lengths_J)
    with np.errstate(divide="ignore", invalid="ignore"):
        kept_XJ = (values_XJ[:, :1] - values_XJ) / (values_XJ[:, :1] - values_XJ[:, -1:])
        rising_XJ = np.maximum.accumulate(kept_XJ, axis=1)
        reached_X = (rising_XJ >= percent / 100).argmax(1).clip(min=1)
        before_X = rising_XJ[places_X, reached_X - 1]
        after_X = rising_XJ[places_X, reached_X]
        part_X = (percent / 100 - before_X) / (after_X - before_X)
    windows_X = 2 ** (log2_J[reached_X - 1] + part_X * (log2_J[reached_X] - log2_J[reached_X - 1]))
    return np.where(values_XJ[:, 0] > values_XJ[:, -1], windows_X, np.nan)


def windows_figure(table: "pd.DataFrame", labels: Mapping[str, "ModelLabel"]) -> "Figure":
    """The windows of `needed_context` that keep 90, 95 and 99 %, a row each; sites and kinds of one model."""
    from analysis import drawing

    is_all = table["source"] == ALL
    table = table[is_all | (table["model"] == table["model"].iloc[0])]

    groups = table.groupby(["model", "source"], sort=False)
    criteria = [name for name in _VALUE if name in set(table["criterion"])]
    longest = table["context_length"].max()
    shortest = table["context_length"].min()
    figure, axes = drawing.panels(len(criteria), 0.7 + 0.19 * len(KEPT) * len(groups))
    names: list[str] = []
    for key, of_group in groups:
        model, source = map(str, key)
        called = labels[model].text + ("" if source == ALL else f", {source}")
        names += [f"{called}: keeps {KEPT[0] / 100:.2f}", *(f"{percent / 100:.2f}" for percent in KEPT[1:])]
        for ax, criterion in zip(axes, criteria, strict=True):
            rows = of_group[of_group["criterion"] == criterion].head(1)
            for place, percent in enumerate(KEPT, start=len(names) - len(KEPT)):
                style = labels[model].style.measured
                drawing.draw_points(ax, [-place], rows, f"window_{percent}", [style] * len(rows))
    for ax, criterion in zip(axes, criteria, strict=True):
        drawing.tokens_axis(ax, table["context_length"].unique(), "context that keeps it (tokens)")
        ax.set_xlim(shortest, 1.1 * longest)
        ax.set_title(f"by the {criterion}")
        ax.set_yticks([-place for place in range(len(names))], names if ax is axes[0] else [])
    trained = {model: labels[model].train_context_length or 0 for model in table["model"].unique()}
    longest_trained = max(trained.values())
    of_longest = table[(table["model"].map(trained) == longest_trained) & (table["source"] == ALL)]
    low = round(of_longest["window_90"].min())
    high = round(of_longest["window_90"].max())
    extent = f"{low}" if low == high else f"{low} to {high}"
    who = f"Models trained at {longest_trained} tokens need" if longest_trained else "The models need"
    size = drawing.common_size(labels[model] for model in table["model"])
    drawing.put_title(
        figure,
        f"{who} {extent} of {longest} tokens for nine tenths of what these are worth",
        drawing.sample_size(table),
        size,
        f"worth: what they give more than {shortest}",
        drawing.BARS,
    )
    return figure
