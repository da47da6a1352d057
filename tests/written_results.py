"""Results written as a stage writes them, for whoever reads results; of made-up models, for the analysis.

The made-up models' selected tokens recover more than recent ones, and these more than random ones. Choosing
with the answer in hand adds a selection bonus to `leave_one_out`, the same under the null.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sparsity_length.results.schemas import DIVERGENCE, LOSS, OTHER_DOCUMENT, OWN, SCHEMAS
from sparsity_length.results.write import StageOutput

KS = [1, 2, 4, 8, 16]
FURTHER_KS = [32, 64, 128]
SHORT_MODELS = ["short-contiguous", "short-pose"]
LONG_MODELS = ["long-seed0", "long-seed1"]
TRAIN_CONTEXT_LENGTHS = {"short-contiguous": 32, "short-pose": 32, "long-seed0": 256, "long-seed1": 256}
SETTINGS = {
    "short_context_length": 16,
    "long_context_length": 256,
    "recovery_fraction": 0.9,
    "minimum_gain": 0.1,
    "k": KS,
}
SELECTION_BONUS = {"leave_one_out": 0.08, "recency": 0.01, "random": 0.0}
"""Nats per doubling of k + 1."""
RULE_STRENGTH = {"leave_one_out": 1.0, "recency": 0.4, "random": 0.1}
"""Part of the gain that a rule's 16 tokens recover."""
NUM_DOCUMENTS = 24
TARGETS_PER_DOCUMENT = 16
EVALUATOR = "another-model"
ABSURD_LOSS = 50.0
"""Of the rows that are not to be read as the model's own."""


def write_tables(
    results: Path,
    stage: str,
    model: str,
    settings: dict[str, Any],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    inputs: Mapping[str, str] | None = None,
) -> None:
    """Write rows of several artefacts of one model; columns that a row lacks are null."""
    output = StageOutput(results, stage, model, settings=settings, inputs=inputs or {}, num_shards=1)
    columns = {
        artefact: {
            name: [row.get(name) for row in rows]
            for name in SCHEMAS[artefact].names
            if name in {*chain(*rows)}
        }
        for artefact, rows in tables.items()
    }
    output.write_shard(0, columns.items())


def length_losses(*losses: float) -> list[tuple[str, dict[str, Any]]]:
    """Mean losses of as many chunks of one document, at one length."""
    of_all = {"document_id": "d", "context_length": 16, "num_targets": 4}
    columns = {name: [value] * len(losses) for name, value in of_all.items()}
    return [("length_losses", columns | {"chunk_index": [*range(len(losses))], "mean_loss": [*losses]})]


def write_length_losses(results: Path, model: str, *shards: Sequence[float], **settings: Any) -> Path:
    """Write a model's, some in each shard, made with these settings."""
    output = StageOutput(
        results, "length_losses", model, settings=settings, inputs={}, num_shards=len(shards)
    )
    for index, losses in enumerate(shards):
        output.write_shard(index, length_losses(*losses), {"num_parameters": len(model)})
    return results


def write_results(
    results: Path, models: Sequence[str] = (*SHORT_MODELS, *LONG_MODELS), *, tells_training: bool = True
) -> Path:
    """Write all stages' artefacts in two shards; short-pose has no influential tokens.

    `tells_training`: whether the files tell how each model was trained.
    """
    for index, model in enumerate(models):
        generator = np.random.default_rng([0, index])
        rows = _targets(model, generator)
        stages = {
            "loss_differences": {"loss_differences": rows},
            "length_losses": {"length_losses": _length_losses(rows, model, generator)},
        }
        if model != "short-pose":
            stages["influential_tokens"] = {
                "sparse_context_losses": _sparse_context_losses(rows, model, generator),
                "dependency_sparsity": _dependency_sparsity(rows, model, generator),
            }
        facts = {
            "num_parameters": 1_000_000,
            "train_step": 400,
            "train_context_length": TRAIN_CONTEXT_LENGTHS[model],
            "seed": int(model == "long-seed1"),
            "position_scheme": "pose" if model == "short-pose" else "contiguous",
        }
        inputs = {"checkpoint": f"{index:064x}"}
        for stage, tables in stages.items():
            output = StageOutput(results, stage, model, settings=SETTINGS, inputs=inputs, num_shards=2)
            for shard in range(2):
                columns = {name: _columns(name, table, shard) for name, table in tables.items()}
                output.write_shard(shard, columns.items(), facts if tells_training else None)
    return results


def _columns(artefact: str, table: pd.DataFrame, shard: int) -> dict[str, list]:
    """The rows of half of the documents, as they are written."""
    in_shard = table[(table["document_id"] >= f"{NUM_DOCUMENTS // 2:016x}") == bool(shard)]
    return in_shard[[name for name in SCHEMAS[artefact].names if name in table]].to_dict("list")


def _targets(model: str, generator: np.random.Generator) -> pd.DataFrame:
    """Every target's losses: long-context models gain by the distant context, short-context ones do not."""
    num_targets = NUM_DOCUMENTS * TARGETS_PER_DOCUMENT
    document = np.repeat(np.arange(NUM_DOCUMENTS), TARGETS_PER_DOCUMENT)
    gain = generator.normal(0, 0.3, num_targets)
    long_loss = 2.0 + generator.gamma(2.0, 1.0, num_targets)
    if model in LONG_MODELS:
        gain = generator.gamma(1.5, 0.3, num_targets) * generator.gamma(4.0, 0.25, NUM_DOCUMENTS)[document]
    position = np.tile(np.arange(240, 240 + TARGETS_PER_DOCUMENT), NUM_DOCUMENTS)
    return pd.DataFrame(
        {
            "document_id": [f"{index:016x}" for index in document],
            "chunk_index": 0,
            "target_position": position,
            "target_token_id": position % 7,
            "num_long_context_tokens": position,
            "gain": gain,
            "loss_difference": gain,
            "long_context_loss": long_loss,
            "short_context_loss": long_loss + gain,
        }
    )


def _sparse_context_losses(rows: pd.DataFrame, model: str, generator: np.random.Generator) -> pd.DataFrame:
    """And what is not the model's own, absurd: another evaluator's losses, and controls at further k."""
    table = pd.DataFrame(
        product(SELECTION_BONUS, (OWN, OTHER_DOCUMENT), [*KS, *FURTHER_KS]),
        columns=["rule", "distant_context", "k"],
    )
    table = table[(table["k"] <= KS[-1]) | (table["rule"] != "leave_one_out")].merge(rows, how="cross")
    strength = table["rule"].map(RULE_STRENGTH).where(table["distant_context"] == OWN, 0)
    per_doubling = table["rule"].map(SELECTION_BONUS) + strength * table["gain"] / np.log2(KS[-1] + 1)
    losses = table["short_context_loss"] - per_doubling * np.log2(table["k"] + 1)
    losses += generator.normal(0, 0.02, len(table))
    own = table.assign(evaluator=model, sparse_context_loss=losses.where(table["k"] <= KS[-1], ABSURD_LOSS))
    return pd.concat([own, own.assign(evaluator=EVALUATOR, sparse_context_loss=ABSURD_LOSS)])


def _dependency_sparsity(rows: pd.DataFrame, model: str, generator: np.random.Generator) -> pd.DataFrame:
    """k* by the loss, None if censored; by the divergence, and for another evaluator, one token for all."""
    drawn = pd.Series(generator.choice([*KS, 0], len(rows)), dtype=object)
    by_loss = rows.assign(rule="leave_one_out", is_censored=drawn == 0, k_90=drawn.where(drawn > 0, None))
    one = by_loss.assign(k_90=1, is_censored=False)
    tables = [by_loss.assign(evaluator=model, criterion=LOSS)]
    tables.append(one.assign(evaluator=model, criterion=DIVERGENCE))
    tables += [one.assign(evaluator=EVALUATOR, criterion=criterion) for criterion in (LOSS, DIVERGENCE)]
    return pd.concat(tables)


def _length_losses(rows: pd.DataFrame, model: str, generator: np.random.Generator) -> pd.DataFrame:
    """Loss falls with the context up to the training length, and rises beyond it where training was short."""
    keys = pd.DataFrame({"document_id": rows["document_id"].unique(), "chunk_index": 0})
    table = keys.merge(pd.DataFrame({"context_length": [16, 32, 64, 128, 256]}), how="cross")
    doublings_beyond = np.log2(table["context_length"] / TRAIN_CONTEXT_LENGTHS[model]).clip(lower=0)
    losses = 4 + 2 / np.sqrt(table["context_length"]) + 0.2 * doublings_beyond
    return table.assign(
        num_targets=TARGETS_PER_DOCUMENT, mean_loss=losses + generator.normal(0, 0.02, len(table))
    )
