"""Do documents of a high score help training? Train on the better half by each score, and compare.

    python tests/benchmarks/training_by_scores.py --scores runs/scores/scores --pool runs/scores/pool \\
        --held-out 'c4-validation*.json*' --seeds 0 1 2 3 --out runs/scores/trainings

By each score of analysis/document_scores.py the better half of the documents, in tokens, is a training set.
On each, models of the same size read the same number of tokens, with the same seeds. `random` is another half
with each seed. They are compared on held-out documents: the gain from a long context, and its loss. Resumes;
several may run at once, with other --seeds. Prints the table of the seeds that were asked for, and writes it
as training_by_scores.csv: differences to `random`, with Student's 95 % intervals over paired seeds.
"""

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import pandas as pd
from scipy import stats

from pipeline.cli import InputError, folder_path, progress, run_stage, stage_parser
from pipeline.results.read import artefacts_in, read_artefact
from pipeline.results.table import as_table

ROOT = Path(__file__).resolve().parents[2]
MORE, FEWER, MIDDLE = "more", "fewer", "middle"
BETTER = {
    "random": None, "stake": MORE, "num_tokens": MORE, "gzip_ratio": MIDDLE, "prolong_difference": MORE,
    "key_token_share": MORE, "mean_distance": MORE, "mean_log2_k": FEWER,
}  # fmt: skip
"""Score -> which half is the better one; of gzip's ratio that without repetition and without noise."""
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
    add("--by", nargs="+", choices=BETTER, default=list(BETTER), help="scores; random is compared with")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2, 3], help="of the trainings")
    add("--out", type=Path, required=True, help="folder of the trainings and of the table")
    return benchmark


def main(arguments: argparse.Namespace) -> None:
    """Train and measure what is missing, then print and write the table."""
    lines = pd.read_json(arguments.scores / "document_scores.jsonl", lines=True, dtype={"id": str})
    documents = pd.DataFrame(list(lines["metadata"])).assign(text=lines["text"])
    documents = documents.sample(frac=1, random_state=0, ignore_index=True)  # ties follow no other score
    out, measured = arguments.out, {}
    out.mkdir(parents=True, exist_ok=True)
    arms = [(score, seed) for seed in arguments.seeds for score in arguments.by]
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
    table = compared(pd.DataFrame.from_dict(measured, orient="index").rename_axis(["score", "seed"]))
    table.to_csv(out / "training_by_scores.csv", index=False)
    sys.stdout.write(as_table(list(table), table.round(4).values.tolist()))


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


def compared(measured: pd.DataFrame) -> pd.DataFrame:
    """A row a score: means over seeds of gain and loss (nats), and each less random's with its interval."""
    rows = []
    for score, of_seeds in measured.groupby(level="score", sort=False):
        row = {"score": score, "num_seeds": len(of_seeds), **of_seeds.mean()}
        for value in ("gain", "loss"):
            differences = (of_seeds[value].droplevel("score") - measured[value]["random"]).dropna()
            if score == "random" or len(differences) < 2:
                continue
            tested = stats.ttest_1samp(differences, 0.0)
            low, high = tested.confidence_interval()
            row |= {f"{value}_less_random": differences.mean(), f"{value}_low": low, f"{value}_high": high}
            row |= {f"{value}_p": tested.pvalue}
        rows.append(row)
    return pd.DataFrame(rows)


def _run(program: str, *words: object) -> None:
    command = [sys.executable, ROOT / "pipeline" / f"{program}.py", *words]
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")


if __name__ == "__main__":
    run_stage(parser(), main)
