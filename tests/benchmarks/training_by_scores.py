"""Do documents of a high score help training? Train on the better half by each score, and compare.

    python tests/benchmarks/training_by_scores.py --scores runs/scores/scores --pool runs/scores/pool \\
        --held-out 'c4-validation*.json*' --seeds 0 1 2 3 --out runs/scores/trainings

By each score of analysis/document_scores.py the better half of the documents, in tokens, is a training set.
On each, models of the same size read the same number of tokens, with the same seeds. `random` is another half
with each seed. They are compared on held-out documents: the gain from a long context, and the loss with it.
Resumes; several may run at once, with other --seeds. Of the seeds that were asked for it writes
training_by_scores.parquet, a row a training, and prints and draws what each score gives more than `random`
and less than the stake: means over paired seeds with Student's 95 % intervals.
"""

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis.drawing import BLACK, GREY, Style, draw_points, panels, put_title, save
from analysis.read import NO_INTERVAL, interval_cell, interval_columns
from pipeline.cli import InputError, folder_path, progress, run_stage, stage_parser
from pipeline.results.read import artefacts_in, read_artefact
from pipeline.results.statistics import Interval
from pipeline.results.table import as_table

ROOT = Path(__file__).resolve().parents[2]
MORE, FEWER, MIDDLE = "more", "fewer", "middle"
BETTER = {
    "random": None, "stake": MORE, "num_tokens": MORE, "gzip_ratio": MIDDLE, "prolong_difference": MORE,
    "key_token_share": MORE, "mean_distance": MORE, "mean_log2_k": FEWER,
}  # fmt: skip
"""Score -> which half is the better one; of gzip's ratio that without repetition and without noise."""
NAMES = {
    "stake": "largest stake", "num_tokens": "longest", "gzip_ratio": "middle gzip ratio",
    "prolong_difference": "largest ProLong-like difference", "key_token_share": "most key tokens",
    "mean_distance": "farthest needed tokens", "mean_log2_k": "fewest needed tokens",
}  # fmt: skip
VALUES = ("gain", "loss")
TRAINING = [
    "olmo_configs/tiny.yaml", "max_duration=800", "model.d_model=64", "model.n_heads=2", "precision=fp32",
    "train_context_length=256", "eval_context_lengths=[64,256]", "eval_interval=800", "save_interval=800",
]  # fmt: skip
"""As 0.34 M of the decisive study, at 3.3 M tokens."""


def parser() -> argparse.ArgumentParser:
    """The benchmark's command line."""
    benchmark = stage_parser(__doc__)
    add = benchmark.add_argument
    add("--scores", type=folder_path, required=True, help="written by analysis/document_scores.py --out")
    add("--pool", type=folder_path, required=True, help="the data that were scored, for their tokenizer")
    add("--held-out", nargs="+", required=True, help="files in C4's schema to compare on")
    add("--by", nargs="+", choices=BETTER, default=list(BETTER), help="scores, beside random")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2, 3], help="of the trainings")
    add("--out", type=Path, required=True, help="folder of the trainings and of the table")
    return benchmark


def main(arguments: argparse.Namespace) -> None:
    """Train and measure what is missing, then print and write the table."""
    lines = pd.read_json(arguments.scores / "document_scores.jsonl", lines=True, dtype={"id": str})
    documents = pd.DataFrame(list(lines["metadata"])).assign(text=lines["text"])
    documents = documents.sample(frac=1, random_state=0, ignore_index=True)  # ties follow no other score
    if len(set(arguments.seeds)) < 2:  # noqa: PLR2004
        raise InputError("--seeds: one seed has no interval; name two or more")
    out, measured, scores = arguments.out, {}, list(dict.fromkeys(["random", *arguments.by]))
    out.mkdir(parents=True, exist_ok=True)
    arms = [(score, seed) for seed in arguments.seeds for score in scores]
    for score, seed in progress(arms, "training_by_scores", "training"):
        name = f"{score}-seed{seed}"
        results = out / "results" / name
        if not (results.is_dir() and "loss_differences" in artefacts_in(results)):
            of_set = f"random{seed}" if score == "random" else score
            half = out / "halves" / f"{of_set}.jsonl"
            if not half.exists():
                half.parent.mkdir(exist_ok=True)
                chosen = documents[better_half(documents, score, seed)]
                chosen[["text"]].to_json(half, orient="records", lines=True)
            data = out / "data" / of_set
            _run("tokenize_c4", "--out", data, "--source", half, "--evaluation-source", *arguments.held_out,
                 "--tokenizer", arguments.pool / "tokenizer.json")  # fmt: skip
            model = out / "models" / name
            _run("pretrain", *TRAINING, f"seed={seed}", "--data", data, "--save-folder", model)
            _run("loss_differences", "--data", data, "--checkpoints", model, "--results", results,
                 "--short-context-length", 16, "--long-context-length", 256, "--targets-per-chunk", 64,
                 "--max-chunks-per-document", 4)  # fmt: skip
        losses = read_artefact(results, "loss_differences")
        measured[score, seed] = {
            "gain": losses["loss_difference"].mean(),
            "loss": losses["long_context_loss"].mean(),
        }
    trainings = pd.DataFrame.from_dict(measured, orient="index").rename_axis(["score", "seed"]).reset_index()
    trainings.to_parquet(out / "training_by_scores.parquet", index=False)
    for value in VALUES:
        for other in [name for name in ("random", "stake") if name in scores]:
            table = compared(trainings, value, other)
            cells = [
                [row["score"], row["num_seeds"], row[value], interval_cell(row, "difference"), row["holm_p"]]
                for row in table.to_dict("records")
            ]
            header = ["score", "seeds", f"{value}, nats", f"less that by {other}", "Holm's p"]
            sys.stdout.write(as_table(header, cells) + "\n")
    save(scores_figure(compared(trainings, "gain", "random")), out, "training_by_scores")


def better_half(documents: pd.DataFrame, score: str, seed: int) -> np.ndarray:
    """True for the documents of the better half by a score, as they come until half of all tokens are there.

    Documents without the score come last; `random` is an order of the seed.
    """
    better = BETTER[score]
    if better is None:
        order = np.random.default_rng(seed).permutation(len(documents))
    else:
        rank = documents[score].rank(pct=True, method="first")
        worse = {MORE: -rank, FEWER: rank, MIDDLE: (rank - 0.5).abs()}[better]
        order = np.argsort(worse.fillna(np.inf).to_numpy(), kind="stable")
    tokens = documents["num_tokens"].to_numpy()[order]
    taken = np.zeros(len(documents), bool)
    taken[order[np.cumsum(tokens) <= tokens.sum() / 2]] = True
    return taken


def compared(trainings: pd.DataFrame, value: str, other: str) -> pd.DataFrame:
    """What each score gives more than another, the most first.

    Args:
        trainings: a row a training: score, seed, and the values.
        value: one of `VALUES`, nats.
        other: the score that is compared with.

    Returns:
        A row a score: num_seeds, value (its mean), difference with its interval, p and holm_p, null for the
        other itself.
    """
    wide, rows = trainings.pivot(index="seed", columns="score", values=value), []
    for score in wide:
        differences = (wide[score] - wide[other]).dropna()
        row = {"score": score, "num_seeds": len(differences), value: wide[score].mean()}
        interval = NO_INTERVAL
        if score != other:
            tested = stats.ttest_1samp(differences, 0.0)
            interval = Interval(differences.mean(), *tested.confidence_interval())
            row["p"] = tested.pvalue
        rows.append(row | interval_columns("difference", interval))
    table = pd.DataFrame(rows)
    is_tested = table["p"].notna()
    table.loc[is_tested, "holm_p"] = multipletests(table.loc[is_tested, "p"], method="holm")[1]
    return table.sort_values("difference", ascending=False, ignore_index=True)


def scores_figure(table: pd.DataFrame) -> Figure:
    """What each score's half gains more than random halves, of `compared`."""
    rows = table.dropna(subset="difference")
    figure, (ax,) = panels(1, 2.2)
    places = -np.arange(len(rows))
    draw_points(ax, places, rows, "difference", [Style(BLACK, "o").measured] * len(rows))
    ax.axvline(0, color=GREY, linewidth=1, linestyle=":")
    ax.set_yticks(places, [NAMES[score] for score in rows["score"]])
    ax.set_xlabel("gain of the long context, less that after random documents (nats)")
    helpful = rows[(rows["holm_p"] < 0.05) & (rows["difference"] > 0)]  # noqa: PLR2004
    title = "No score's better half teaches to use a long context clearly better than random documents"
    if len(helpful):
        title = f"Better than random documents teach: {', '.join(NAMES[score] for score in helpful['score'])}"
    gain = table.loc[table["score"] == "random", "gain"].iloc[0]
    of_random = f"after random documents the gain is {gain:.3f} nats"
    seeds = f"n = {int(rows['num_seeds'].min())} seeds"
    put_title(
        figure, title, seeds, of_random, "bars: 95 % intervals over paired seeds",
        "clearly: by Holm's correction over the scores",
    )  # fmt: skip
    return figure


def _run(program: str, *words: object) -> None:
    command = [sys.executable, str(ROOT / "pipeline" / f"{program}.py"), *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")


if __name__ == "__main__":
    run_stage(parser(), main)
