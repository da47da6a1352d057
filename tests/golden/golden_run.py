"""One tiny run of every stage from text to results, and the numbers that it comes down to.

In float32 on one thread with fixed seeds, so that only the code, and the last digits that CPUs differ in,
can move a number. Words are tokens: no tokenizer is trained, so none can differ between versions.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import torch
from sparsity_length.programs import influential_tokens, loss_differences, pretrain, tokenize_c4
from tokenizers import Tokenizer, models, pre_tokenizers

from sparsity_length.cli import PROGRAMS, stage_of
from sparsity_length.results.read import Results
from sparsity_length.text.folder import TokenizedData

GOLDEN_PATH = Path(__file__).with_name("golden.json")
DEFAULTS_PATH = Path(__file__).with_name("defaults.json")
COMMAND = "python tests/golden/regenerate.py"
TOLERANCE = 1e-4  # of the mean magnitude of a column's values; other vector instructions move a tenth of it
NUM_FIRST = 3

TINY_YAML = Path(__file__).parents[2] / "olmo_configs" / "tiny.yaml"
PRETRAIN = [
    "model.d_model=32",
    "model.n_heads=2",
    "model.n_layers=2",
    "model.max_sequence_length=48",
    "model.init_std=0.15",
    "train_context_length=24",
    "position_scheme=pose",
    "pose_target_length=48",
    "global_train_batch_tokens=192",
    "device_train_microbatch_tokens=96",
    "scheduler.t_warmup=4",
    "optimizer.learning_rate=1e-2",
    "precision=fp32",
    "save_interval=20",
    "max_duration=20",
    "seed=0",
    "eval_interval=10",
    "eval_context_lengths=[8,32]",
]
MEASURE = ["--long-context-length", "40", "--targets-per-chunk", "5", "--device", "cpu"]
SHORT = ["--short-context-length", "8"]

# Openings of novels of the 19th century, without punctuation, that repeat their own words.
TRAINING_TEXTS = [
    "call me ishmael some years ago never mind how long precisely having little or no money in my purse and"
    " nothing particular to interest me on shore i thought i would sail about a little and see the watery"
    " part of the world it is a way i have of driving off the spleen and regulating the circulation whenever"
    " i find myself growing grim about the mouth whenever it is a damp drizzly november in my soul whenever i"
    " find myself involuntarily pausing before coffin warehouses and bringing up the rear of every funeral i"
    " meet then i account it high time to get to sea as soon as i can",
    "it is a truth universally acknowledged that a single man in possession of a good fortune must be in want"
    " of a wife however little known the feelings or views of such a man may be on his first entering a"
    " neighbourhood this truth is so well fixed in the minds of the surrounding families that he is"
    " considered as the rightful property of some one or other of their daughters my dear mr bennet said his"
    " lady to him one day have you heard that netherfield park is let at last",
    "alice was beginning to get very tired of sitting by her sister on the bank and of having nothing to do"
    " once or twice she had peeped into the book her sister was reading but it had no pictures or"
    " conversations in it and what is the use of a book thought alice without pictures or conversations so"
    " she was considering in her own mind whether the pleasure of making a daisy chain would be worth the"
    " trouble of getting up and picking the daisies when suddenly a white rabbit with pink eyes ran close by"
    " her",
]
EVALUATION_TEXTS = [
    "it was the best of times it was the worst of times it was the age of wisdom it was the age of"
    " foolishness it was the epoch of belief it was the epoch of incredulity it was the season of light it"
    " was the season of darkness it was the spring of hope it was the winter of despair we had everything"
    " before us we had nothing before us we were all going direct to heaven we were all going direct the"
    " other way",
    "there was nothing so very remarkable in that nor did alice think it so very much out of the way to hear"
    " the rabbit say to itself oh dear oh dear i shall be late but when the rabbit actually took a watch out"
    " of its waistcoat pocket and looked at it and then hurried on alice started to her feet for it flashed"
    " across her mind that she had never before seen a rabbit with either a waistcoat pocket or a watch to"
    " take out of it and burning with curiosity she ran across the field after it",
    "but it is new said mrs bennet and mr bennet made no answer do you not want to know who has taken it"
    " cried his wife impatiently you want to tell me and i have no objection to hearing it this was"
    " invitation enough why my dear you must know mrs long says that netherfield is taken by a young man of"
    " large fortune from the north of england",
]


def defaults() -> dict[str, dict[str, str]]:
    """Program -> flag -> the words that would say its default, if it has one."""
    found: dict[str, dict[str, str]] = {}
    for module in (module for group in PROGRAMS.values() for module in group):
        name = module.rpartition(".")[2]
        of_program = found.setdefault(name, {})
        for action in stage_of(name).parser()._actions:
            given = action.default if isinstance(action.default, list | tuple) else [action.default]
            words = " ".join(str(one) for one in given if not (one is None or isinstance(one, bool)))
            if words and action.option_strings and words != argparse.SUPPRESS:
                of_program[action.option_strings[-1]] = words
    return found


def run(folder: Path) -> dict[str, dict[str, Any]]:
    """Run every stage in `folder`: table -> column -> `summary` of its values."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _run_stages(folder)
    finally:
        torch.set_num_threads(threads)
    return _summaries(folder)


def _run_stages(folder: Path) -> None:
    for name, texts in (("train", TRAINING_TEXTS), ("evaluation", EVALUATION_TEXTS)):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    _word_tokenizer().save(str(folder / "words.json"))
    data = f"{folder}/data"
    model = f"{folder}/model"
    results = f"{folder}/results"
    sources = ["--source", f"{folder}/train.jsonl", "--evaluation-source", f"{folder}/evaluation.jsonl"]
    _run(tokenize_c4, ["--out", data, *sources, "--tokenizer", f"{folder}/words.json"])
    _run(pretrain, [str(TINY_YAML), "--data", data, "--save-folder", model, *PRETRAIN])
    measure = [*MEASURE, "--data", data, "--checkpoints", model, "--results", results]
    _run(loss_differences, [*measure, *SHORT])
    chosen = ["--rules", "leave_one_out", "random", "recency", "--ablation", "mask"]
    _run(influential_tokens, [*measure, *SHORT, "--k", "1", "4", *chosen])
    _run(loss_differences, [*measure, "--context-lengths"])


def _run(stage: ModuleType, words: list[str]) -> None:
    stage.STAGE(words)


def _word_tokenizer() -> Tokenizer:
    words = sorted({word for text in TRAINING_TEXTS + EVALUATION_TEXTS for word in text.split()})
    vocabulary = {word: index for index, word in enumerate(["<|endoftext|>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _summaries(folder: Path) -> dict[str, dict[str, Any]]:
    data = TokenizedData.open(folder / "data")
    tokens = np.concatenate([np.fromfile(path, dtype=data.token_dtype) for path in data.train_paths])
    metrics = pd.read_json(folder / "model" / "metrics.jsonl", lines=True)
    weights = torch.load(folder / "model" / "step20-unsharded" / "model.pt", weights_only=True)
    tables = {
        "training_data": pd.DataFrame({"token_id": tokens}),
        "metrics": metrics.drop(columns="tokens_per_second"),
        "weights": pd.DataFrame({"value": torch.cat([w.flatten() for w in weights.values()]).numpy()}),
    }
    tables |= {name: Results(folder / "results").frame(name) for name in Results(folder / "results").tables}
    return {
        name: {column: summary(table[column]) for column in table if _numbers(table[column]) is not None}
        for name, table in tables.items()
    }


def _numbers(column: pd.Series) -> np.ndarray | None:
    """The numbers in a column, without nulls, those of lists in a row; None for a column of words."""
    present = column.dropna()
    if len(present) and isinstance(present.iloc[0], str):
        return None
    if len(present) and isinstance(present.iloc[0], np.ndarray):
        return np.concatenate(list(present)).astype(np.float64)
    return present.to_numpy(dtype=np.float64)


def summary(column: pd.Series) -> dict[str, Any]:
    """How many values there are, their sum, their mean magnitude and the first of them, to six digits."""
    values = _numbers(column)
    assert values is not None
    return {
        "num_values": len(values),
        "sum": _six_digits(values.sum()),
        "mean_magnitude": _six_digits(np.abs(values).mean()) if len(values) else 0.0,
        "first": [_six_digits(value) for value in values[:NUM_FIRST]],
    }


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def moved(golden: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """One phrase for every column of `found` that is not as in `golden`, within the tolerance."""
    phrases = []
    for table in sorted(golden.keys() | found.keys()):
        before = golden.get(table, {})
        now = found.get(table, {})
        for column in sorted(before.keys() | now.keys()):
            if column not in now or column not in before:
                phrases.append(f"{table}.{column} is {'gone' if column in before else 'new'}")
            else:
                phrases += [f"{table}.{column}: {what}" for what in _changes(before[column], now[column])]
    return phrases


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    if before["num_values"] != now["num_values"]:
        return [f"num_values was {before['num_values']}, now {now['num_values']}"]
    tolerance = TOLERANCE * before["mean_magnitude"]
    changes = []
    if abs(before["sum"] - now["sum"]) > tolerance * before["num_values"]:
        changes.append(f"sum was {before['sum']}, now {now['sum']}")
    if not np.allclose(before["first"], now["first"], rtol=TOLERANCE, atol=tolerance):
        changes.append(f"first was {before['first']}, now {now['first']}")
    return changes
