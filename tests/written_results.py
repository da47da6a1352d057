"""Results written as a stage writes them, for whoever reads results."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from sparsity_length.results.schemas import SCHEMAS
from sparsity_length.results.write import StageOutput


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
    count = len(shards)
    output = StageOutput(results, "length_losses", model, settings=settings, inputs={}, num_shards=count)
    for index, losses in enumerate(shards):
        output.write_shard(index, length_losses(*losses), {"num_parameters": len(model)})
    return results
