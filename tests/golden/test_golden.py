"""Numbers of one tiny run, commands of studies, published tables, defaults: they are what they were.

The run is of every stage from text to results, in float32 on one thread with fixed seeds, so that only the
code, and the last digits that CPUs differ in, can move a number. Words are tokens: no tokenizer is trained,
so none can differ between versions.
"""

import argparse
import dataclasses
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import measured_documents
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from measured_documents import VOCABULARY_SIZE, contents, stage_name, word_level
from olmo.model import OLMo
from sparsity_length.programs import influential_tokens, loss_differences, pretrain, tokenize_c4

import sparsity_length
from sparsity_length.cli import PROGRAMS, stage_of
from sparsity_length.measuring import rules, selecting, settings
from sparsity_length.results.read import Results
from sparsity_length.settings import Settings
from sparsity_length.studies.commands import MEASURING, commands_of
from sparsity_length.studies.file import load_study
from sparsity_length.text.folder import TokenizedData

ROOT = Path(__file__).resolve().parents[2]
STUDIES = sorted((ROOT / "olmo_configs" / "studies").glob("*.yaml"))
REFERENCE = ROOT / "analysis" / "reference"
VARIABLES = {"C4": "C4", "TEXT": "TEXT", "MODEL": "MODEL", "SCRATCH": "SCRATCH"}
COMMANDS = Path(__file__).with_name("study_commands.json")
TABLES = Path(__file__).with_name("published_tables.json")
GOLDEN_PATH = Path(__file__).with_name("golden.json")
DEFAULTS_PATH = Path(__file__).with_name("defaults.json")
TOLERANCE = 1e-4  # of the mean magnitude of a column's values; other vector instructions move a tenth of it

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
CHOOSE = ["--k", "1", "4", "--rules", "leave_one_out", "random", "recency", "--ablation", "mask"]

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


def run(folder: Path) -> dict[str, dict[str, Any]]:
    """Run every stage in `folder`: table -> column -> `_summary` of its values."""
    torch.set_num_threads(1)
    for name, texts in (("train", TRAINING_TEXTS), ("evaluation", EVALUATION_TEXTS)):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    words = sorted({word for text in TRAINING_TEXTS + EVALUATION_TEXTS for word in text.split()})
    word_level("<|endoftext|>", "<unk>", *words).save(str(folder / "words.json"))
    sources = ["--source", f"{folder}/train.jsonl", "--evaluation-source", f"{folder}/evaluation.jsonl"]
    tokenize_c4.STAGE(["--out", f"{folder}/data", *sources, "--tokenizer", f"{folder}/words.json"])
    trained = ["--data", f"{folder}/data", "--save-folder", f"{folder}/model"]
    pretrain.STAGE([f"{ROOT}/olmo_configs/tiny.yaml", *trained, *PRETRAIN])
    made = ["--data", f"{folder}/data", "--checkpoints", f"{folder}/model", "--results", f"{folder}/results"]
    loss_differences.STAGE([*made, *MEASURE, *SHORT])
    influential_tokens.STAGE([*made, *MEASURE, *SHORT, *CHOOSE])
    loss_differences.STAGE([*made, *MEASURE, "--context-lengths"])

    data = TokenizedData.open(folder / "data")
    tokens = np.concatenate([np.fromfile(path, dtype=data.token_dtype) for path in data.train_paths])
    metrics = pd.read_json(folder / "model" / "metrics.jsonl", lines=True)
    weights = torch.load(folder / "model" / "step20-unsharded" / "model.pt", weights_only=True)
    results = Results(folder / "results")
    tables = {
        "training_data": pd.DataFrame({"token_id": tokens}),
        "metrics": metrics.drop(columns="tokens_per_second"),
        "weights": pd.DataFrame({"value": torch.cat([w.flatten() for w in weights.values()]).numpy()}),
        **{name: results.frame(name) for name in results.tables},
    }
    return {name: dict(_summaries(table)) for name, table in tables.items()}


def _summaries(table: pd.DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of every column of numbers, or lists of them: their number, sum, mean magnitude, and first three.

    To six digits; nulls are left out.
    """
    for name, column in table.items():
        present = column.explode().dropna()
        if not isinstance(next(iter(present), None), str):
            values = present.to_numpy(dtype=np.float64)
            yield (
                str(name),
                {
                    "num_values": len(values),
                    "sum": _six_digits(values.sum()),
                    "mean_magnitude": _six_digits(np.abs(values).mean()) if len(values) else 0.0,
                    "first": [_six_digits(value) for value in values[:3]],
                },
            )


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def moved(golden: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """One phrase for every column of `found` that is not as in `golden`, within the tolerance."""
    before, now = (
        {f"{table}.{name}": column for table, columns in tables.items() for name, column in columns.items()}
        for tables in (golden, found)
    )
    return [
        f"{name} was {before.get(name)}, now {now.get(name)}"
        for name in sorted(before.keys() | now.keys())
        if not (name in before and name in now and _is_same(before[name], now[name]))
    ]


def _is_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    tolerance = TOLERANCE * before["mean_magnitude"]
    return (
        before["num_values"] == now["num_values"]
        and abs(before["sum"] - now["sum"]) <= tolerance * before["num_values"]
        and np.allclose(before["first"], now["first"], rtol=TOLERANCE, atol=tolerance)
    )


def test_no_number_has_moved(tmp_path: Path) -> None:
    changes = moved(json.loads(GOLDEN_PATH.read_text(encoding="utf-8")), run(tmp_path))
    assert not changes, (
        "these columns moved:\n  "
        + "\n  ".join(changes)
        + "\nif that is meant, run `make golden` and say why"
    )


def commands(study: Path) -> list[str]:
    """The commands of a study, as they are typed in the repository's root, which is where this must run."""
    return [str(command).replace(str(ROOT), ".") for command in commands_of(load_study(study, []))]


def tables() -> dict[str, dict[str, str]]:
    """Table -> column -> hash of its values in the order of the rows; all of analysis/reference."""
    frames = {
        f"{manifest.parent.relative_to(REFERENCE)}/{artefact}": Results(manifest.parent).frame(artefact)
        for manifest in sorted(REFERENCE.rglob("exported.json"))
        for artefact in Results(manifest.parent).tables
    }
    frames |= {
        str(path.relative_to(REFERENCE)): pd.read_parquet(path)
        for path in sorted(REFERENCE.rglob("*.parquet"))
        if not (path.parent / "exported.json").exists()
    }
    return {
        name: {column: _hash(frame[column]) for column in sorted(frame.columns)}
        for name, frame in frames.items()
    }


def _hash(values: pd.Series) -> str:
    """Length and hash, whether held as numbers with a mask, strings or categories; null and NaN are one."""
    digest = hashlib.sha256(_bytes(pa.array(values, from_pandas=True))).hexdigest()
    return f"{len(values)}-{digest[:16]}"


def _bytes(array: pa.Array) -> bytes:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = array.dictionary_encode()
    if pa.types.is_dictionary(array.type):  # as the words' list is printed
        words = np.array([*map(repr, array.dictionary.to_pylist()), "None"], dtype=object)
        return f"[{', '.join(words[array.indices.fill_null(len(words) - 1).to_numpy()])}]".encode()
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _bytes(array.value_lengths()) + _bytes(array.flatten())
    numbers = np.array(array.to_pandas(), dtype="float64")
    numbers[np.isnan(numbers)] = np.nan  # of one kind
    return numbers.tobytes()


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.stem)
def test_the_commands_of_a_study_are_what_they_were_and_their_programs_take_them(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    assert commands(study) == json.loads(COMMANDS.read_text(encoding="utf-8"))[study.stem]
    for command in commands_of(load_study(study, [])):
        if command.stage in MEASURING:
            stage = stage_of(command.stage)
            stage.settings(stage.parse(command.arguments), [])


def test_the_published_tables_are_what_they_were() -> None:
    assert tables() == json.loads(TABLES.read_text(encoding="utf-8"))


DEFAULTS: dict[str, dict[str, str]] = json.loads(DEFAULTS_PATH.read_text(encoding="utf-8"))


def defaults() -> dict[str, dict[str, str]]:
    """Program -> flag -> the words that would say its default, if it has one."""
    names = [module.rpartition(".")[2] for group in PROGRAMS.values() for module in group]
    return {name: dict(_defaults_of(name)) for name in names}


def _defaults_of(program: str) -> Iterator[tuple[str, str]]:
    for action in stage_of(program).parser()._actions:
        given = action.default if isinstance(action.default, list | tuple) else [action.default]
        words = " ".join(str(one) for one in given if not (one is None or isinstance(one, bool)))
        if words and action.option_strings and words != argparse.SUPPRESS:
            yield action.option_strings[-1], words


def test_the_table_holds_what_parsers_say() -> None:
    assert defaults() == DEFAULTS


@pytest.mark.parametrize("program", [name for name, flags in DEFAULTS.items() if flags])
def test_help_says_the_defaults_of_the_table(program: str) -> None:
    items = (item.split() for item in re.split(r"\n  (?=-)", stage_of(program).parser(program).format_help()))
    manual = {item[0]: " ".join(item) for item in items}
    for flag, words in DEFAULTS[program].items():
        shown = ", ".join(f"{int(word):,}" if word.isdigit() else word for word in words.split())
        assert f"(default: {shown})" in manual[flag]


@pytest.mark.parametrize(
    ("stage", "asked", "written_out"),
    [
        (loss_differences, [], {}),
        (loss_differences, ["--context-lengths"], {"--context-lengths": "8 12 16 20"}),
        (influential_tokens, [], {"--k": "1 2 4"}),
    ],
)
def test_a_program_without_flags_gives_the_numbers_of_all_written_out(
    stage: ModuleType,
    asked: list[str],
    written_out: dict[str, str],
    tmp_path: Path,
    make_olmo: Callable[..., OLMo],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    documents = np.random.default_rng(0).integers(1, VOCABULARY_SIZE, (4, 36), dtype=np.int32)
    by_name = {f"{number:016x}": token_ids for number, token_ids in enumerate(documents)}
    monkeypatch.setattr(measured_documents, "DOCUMENTS", by_name)
    measured_documents.write_measurable(tmp_path, make_olmo(seed=1, n_layers=1))
    words = ["--data", f"{tmp_path}/data", "--checkpoints", f"{tmp_path}/run", "--results"]
    flags = DEFAULTS[stage_name(stage)] | written_out
    if asked:
        del flags["--short-context-length"]  # of the other mode
    every = [word for flag, values in flags.items() for word in (flag, *values.split())]
    # Of 36 tokens 20 stand before the first of 16 targets: four of them distant.
    common = ["--long-context-length", "36", "--device", "cpu"]
    stage.STAGE([*words, str(tmp_path / "without"), *common, *asked])
    stage.STAGE([*words, str(tmp_path / "with"), *common, *every])
    assert contents(tmp_path / "without") == contents(tmp_path / "with") != {}


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        ("losses", settings.BesideShort),
        ("influential_tokens", selecting.Selecting),
        ("explain", settings.Explaining),
    ],
)
def test_a_default_is_the_same_in_a_function_and_in_its_program(
    function: str, settings: type[Settings]
) -> None:
    parameters = inspect.signature(getattr(sparsity_length, function)).parameters
    ours = {one.name: one.default for one in dataclasses.fields(settings)}
    common = parameters.keys() & ours.keys() - {"long_context_length"}  # which follows from the model
    assert common and all(parameters[name].default == ours[name] for name in common)


@pytest.mark.parametrize(
    ("page", "words", "is_true"),
    [
        ("README.md", f"`{rules.DEFAULT_RULES[0]}` with `--ablation {rules.DEFAULT_ABLATION}`", True),
        ("README.md", "tokens of two other documents (`--trial-swaps`", rules.TRIAL_SWAPS == 2),
        ("RECIPES.md", "the default two minutes", settings.Explaining().seconds == 120),
    ],
)
def test_pages_say_the_defaults(page: str, words: str, is_true: bool) -> None:
    assert is_true and words in (ROOT / "pipeline" / page).read_text(encoding="utf-8")
