"""Defaults as a user meets them: the golden table, --help, pages, functions, numbers without flags."""

import dataclasses
import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import measured_documents
import numpy as np
import pytest
from golden_run import DEFAULTS_PATH, defaults
from measured_documents import VOCABULARY_SIZE, contents, stage_name, write_checkpoint, write_data
from olmo.model import OLMo
from sparsity_length.programs import influential_tokens as influential_stage
from sparsity_length.programs import loss_differences as loss_stage

from sparsity_length import explain, influential_tokens, losses
from sparsity_length.cli import stage_of
from sparsity_length.measuring.rules import DEFAULT_ABLATION, DEFAULT_RULES, TRIAL_SWAPS
from sparsity_length.measuring.selecting import Selecting
from sparsity_length.measuring.settings import BesideShort, Explaining
from sparsity_length.settings import Settings

PIPELINE = Path(__file__).resolve().parents[2] / "pipeline"
GOLDEN: dict[str, dict[str, str]] = json.loads(DEFAULTS_PATH.read_text(encoding="utf-8"))
LENGTH = "36"
"""Tokens, of which 20 stand before the first of 16 targets: four of them distant."""


def test_the_table_holds_what_parsers_say() -> None:
    assert defaults() == GOLDEN


@pytest.mark.parametrize("program", [name for name, flags in GOLDEN.items() if flags])
def test_help_says_the_defaults_of_the_table(program: str) -> None:
    parser = stage_of(program).parser(program)
    items = (item.split() for item in re.split(r"\n  (?=-)", parser.format_help()))
    manual = {item[0]: " ".join(item) for item in items}
    for flag, words in GOLDEN[program].items():
        shown = ", ".join(f"{int(word):,}" if word.isdigit() else word for word in words.split())
        assert f"(default: {shown})" in manual[flag]


@pytest.mark.parametrize(
    ("stage", "asked", "written_out"),
    [
        (loss_stage, [], {}),
        (loss_stage, ["--context-lengths"], {"--context-lengths": "8 12 16 20"}),
        (influential_stage, [], {"--k": "1 2 4"}),
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
    documents = np.random.default_rng(0).integers(1, VOCABULARY_SIZE, (4, 40), dtype=np.int32)
    by_name = {f"{number:016x}": token_ids for number, token_ids in enumerate(documents)}
    monkeypatch.setattr(measured_documents, "DOCUMENTS", by_name)
    write_data(tmp_path / "data")
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    words = ["--data", f"{tmp_path}/data", "--checkpoints", f"{tmp_path}/run", "--device", "cpu"]
    words += ["--long-context-length", LENGTH, "--results"]
    flags = GOLDEN[stage_name(stage)] | written_out
    if asked:
        del flags["--short-context-length"]  # of the other mode
    every = [word for flag, values in flags.items() for word in (flag, *values.split())]
    stage.STAGE([*words, str(tmp_path / "without"), *asked])
    stage.STAGE([*words, str(tmp_path / "with"), *every])
    assert contents(tmp_path / "without") == contents(tmp_path / "with") != {}


@pytest.mark.parametrize(
    ("function", "settings"),
    [(losses, BesideShort), (influential_tokens, Selecting), (explain, Explaining)],
)
def test_a_default_is_the_same_in_a_function_and_in_its_program(
    function: Callable[..., Any], settings: type[Settings]
) -> None:
    given = {name: one.default for name, one in inspect.signature(function).parameters.items()}
    ours = {one.name: one.default for one in dataclasses.fields(settings)}
    common = given.keys() & ours.keys() - {"long_context_length"}  # which follows from the model
    assert common and {name: given[name] for name in common} == {name: ours[name] for name in common}


def test_pages_say_the_defaults() -> None:
    recipes, methods = ((PIPELINE / name).read_text("utf-8") for name in ("RECIPES.md", "README.md"))
    assert f"`{DEFAULT_RULES[0]}` with `--ablation {DEFAULT_ABLATION}`" in methods
    assert ("tokens of two other documents (`--trial-swaps`" in methods) == (TRIAL_SWAPS == 2)
    assert ("the default two minutes" in recipes) == (Explaining().seconds == 120)
