"""Score documents for training at long contexts: what their far context is worth, how far, how concentrated.

  python analysis/document_scores.py --results runs/demo/results --data runs/demo/data --out runs/demo/scores

Writes document_scores.parquet (pipeline/RESULTS.md), and document_scores.jsonl: a line a document with "id",
"text" and "metadata", the scores, as datatrove's JsonlReader takes it. Prints how documents' ranks by each
score go together with those by the stake. From loss_differences; how far and how many the tokens are from
influential_tokens in the same folder, where it was run.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
import gzip
import json
from typing import TYPE_CHECKING

from pipeline.cli import folder_path, stage_parser

if TYPE_CHECKING:
    import pandas as pd

RULE = "leave_one_out_divergence"
SCORES = (
    "stake", "gain", "long_filter", "prolong_difference", "key_token_share", "mean_log2_k", "mean_distance",
    "gzip_ratio", "num_tokens",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--results", type=folder_path, required=True, help="a results folder of loss_differences")
    add("--data", type=folder_path, help="the tokenized data; beside the results where not given")
    add("--out", type=folder_path, required=True, help="where the two files are written")
    add("--model", help="whose scores; the first by name if not given")
    return program


def main(arguments: argparse.Namespace) -> None:
    """Write the scores, and print how their ranks go together."""
    # Imported late, for a --help at once.
    import numpy as np

    from analysis.read import MeasuredText, read_sparsity, rows_of, write_derived_table
    from pipeline.results.read import artefacts_in, read_artefact
    from pipeline.results.schemas import DIVERGENCE
    from pipeline.results.table import as_table

    results = arguments.results
    losses = read_artefact(results, "loss_differences")
    losses = rows_of(losses, arguments.model or min(losses["model"]))
    model, text = losses["model"].iloc[0], MeasuredText.open(results, "loss_differences", arguments.data)
    only, chosen, sparsity = {"model": [model], "rule": [RULE]}, losses.iloc[:0], losses.iloc[:0]
    if "dependency_sparsity" in artefacts_in(results):
        chosen = read_artefact(results, "influential_tokens", only=only | {"far_context": ["own"]})
        sparsity = read_sparsity(results, DIVERGENCE, only=only)
    measured = set(losses["document_id"])
    documents = [one for one in text.data.evaluation_documents() if one.document_id in measured]
    texts = {one.document_id: "".join(text.tokenizer.pieces(one.token_ids.tolist())) for one in documents}
    table = document_scores(losses, chosen, sparsity, texts).assign(model=model)
    table["num_tokens"] = table["document_id"].map({one.document_id: len(one.token_ids) for one in documents})
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_derived_table(table, "document_scores", arguments.out)
    with (arguments.out / "document_scores.jsonl").open("w", encoding="utf-8") as lines:
        for row in table.astype(object).where(table.notna(), None).to_dict("records"):
            document_id = row.pop("document_id")
            line = {"id": document_id, "text": texts[document_id], "metadata": row}
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
    ranks = table[list(SCORES)].astype("float64").rank()
    with np.errstate(invalid="ignore"):  # equal scores have no correlation
        rows = [[name, int(ranks[name].count()), float(ranks["stake"].corr(ranks[name]))] for name in SCORES]
    sys.stdout.write(as_table(["score", "documents", "rank correlation with the stake"], rows))


def document_scores(
    losses: "pd.DataFrame", chosen: "pd.DataFrame", sparsity: "pd.DataFrame", texts: dict[str, str]
) -> "pd.DataFrame":
    """A row a document, the largest stake first: the columns of `document_scores` but model and num_tokens.

    Args:
        losses, chosen, sparsity: rows of one model of loss_differences and, of `RULE`, of influential_tokens
            in the own far context and of dependency_sparsity by the divergence; the last two may be empty.
        texts: document ID -> its text.
    """
    import numpy as np

    from analysis.read import TARGET
    from analysis.tokens.long_perplexity import is_key_token

    table = (
        losses.assign(is_key_token=is_key_token(losses))
        .groupby("document_id")
        .agg(
            stake=("specific_gain", "mean"),
            short=("short_context_loss", "mean"), long=("long_context_loss", "mean"),
            long_filter=("short_context_divergence", "mean"), key_token_share=("is_key_token", "mean"),
        )
        .astype("float64")
    )  # fmt: skip
    contents = [texts[document_id].encode() for document_id in table.index]
    table["num_targets"] = losses.groupby("document_id").size()
    table["gain"] = table["short"] - table["long"]
    table["prolong_difference"] = 1 - np.exp(-table["gain"])
    table["gzip_ratio"] = [len(gzip.compress(content, mtime=0)) / len(content) for content in contents]
    table[["mean_log2_k", "mean_distance"]] = np.nan
    if len(sparsity):
        needed = chosen.merge(sparsity[[*TARGET, "half_sparsity"]].dropna(), on=TARGET)
        needed = needed[needed["rank"] <= needed["half_sparsity"]]
        table["mean_log2_k"] = sparsity.groupby("document_id")["mean_log2_k"].mean()
        table["mean_distance"] = needed.groupby("document_id")["distance"].mean()
    return table.reset_index().sort_values("stake", ascending=False, ignore_index=True)
