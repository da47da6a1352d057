"""What bfloat16 changes in the conclusions, on a trained model and its text.

Influences of one chunk of each document are measured in float32 and in bfloat16, for the own far context and
for the null. Each dtype then selects its own 8 tokens and measures its own losses under short context and
selection, as influential_tokens would with that --dtype. Shown for each far context:
  recovered fraction   sum of L_short - L_short+8 over sum of L_short - L_long, and the dtypes' difference
  top-8 overlap        share of each target's 8 tokens that both dtypes choose
  rank correlation     Spearman's, of the influences of each target's far tokens
A third column takes bfloat16's tokens and float32's losses: what coarse influences choose, judged exactly.
A recovered fraction is a ratio: where the gain L_short - L_long (it is printed) is small, errors grow.

on a run of a study (minutes on 2 cores):
  python tests/benchmarks/bfloat16_agreement.py --checkpoint runs/c4/models/long-seed0 --data runs/c4/data \\
      --short-context-length 16 --long-context-length 256 --out runs/benchmarks/bfloat16_agreement.json

Shapes: T targets (of all documents), F far tokens.
"""

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from agreement import rank_correlation, top_k_overlap
from machine import DTYPES, machine, use_threads

from pipeline.cli import InputError, positive_int, progress, run_stage, stage_parser
from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts, selected_positions
from pipeline.measuring.flags import ContextLengths
from pipeline.models.interface import CausalLM
from pipeline.models.olmo import find_checkpoint, load_olmo
from pipeline.results.schemas import OWN
from pipeline.text.chunks import Chunk, chunks_of, long_enough_documents
from pipeline.text.folder import TokenizedData

K = 8
JUDGED = "bfloat16's tokens, float32's losses"
Selections = dict[str, tuple[FarContext, np.ndarray]]


@dataclass(frozen=True)
class ChunkNumbers:
    """What one dtype makes of one chunk."""

    short_losses_T: np.ndarray
    long_losses_T: np.ndarray
    influence_TF: dict[str, np.ndarray]
    """By far context."""
    selections: Selections
    sparse_losses_T: dict[str, np.ndarray]
    """By far context, under the short context and the K tokens chosen there."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    script = stage_parser(__doc__)
    add = script.add_argument
    add(
        "--checkpoint",
        type=Path,
        required=True,
        help="run folder of pretrain.py, or a step<N>-unsharded folder",
    )
    add("--data", type=Path, required=True, help="folder of tokenize_c4.py that the model was trained on")
    add("--short-context-length", type=positive_int, required=True, help="s, in tokens")
    add("--long-context-length", type=positive_int, required=True, help="chunk length ℓ, in tokens")
    add("--targets-per-chunk", type=positive_int, default=16, help="m, targets at the end of the chunk")
    add("--max-documents", type=positive_int, default=40, help="documents, one chunk of each")
    add("--tokens-per-batch", type=positive_int, default=2048, help="tokens a forward pass may hold")
    add("--threads", type=positive_int, help="threads; all cores if not given")
    add("--device", default="cpu", help="torch device")
    add("--out", type=Path, required=True, help="JSON file for every number")
    return script


def main(arguments: argparse.Namespace) -> None:
    """Measure in both dtypes, print and write."""
    use_threads(arguments.threads)
    device = torch.device(arguments.device)
    lengths = ContextLengths(
        arguments.short_context_length, arguments.long_context_length, arguments.targets_per_chunk
    )
    if lengths.num_far_tokens_T[0] < K:
        raise InputError(f"the first target has {lengths.num_far_tokens_T[0]} far tokens, fewer than {K}")
    chunks = _chunks(arguments)
    folder = find_checkpoint(arguments.checkpoint)
    models = {name: load_olmo(folder, device, dtype) for name, dtype in DTYPES.items()}
    batching = Batching(arguments.tokens_per_batch)
    numbers: dict[str, list[ChunkNumbers]] = {name: [] for name in (*models, JUDGED)}
    for chunk in progress(chunks, "both dtypes", "chunk"):
        exact, coarse = (_numbers(model, chunk, lengths, batching) for model in models.values())
        sparse_T = _sparse_losses(models["float32"], coarse.selections)
        judged = replace(exact, sparse_losses_T=sparse_T)
        for name, of_chunk in zip(numbers, (exact, coarse, judged), strict=True):
            numbers[name].append(of_chunk)
    settings = {
        key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()
    }
    report = {
        "settings": settings,
        "machine": machine(device),
        "num_chunks": len(chunks),
        **compared(numbers),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))


def _chunks(arguments: argparse.Namespace) -> list[Chunk]:
    data = TokenizedData.open(arguments.data)
    length = arguments.long_context_length
    documents = long_enough_documents(data, length, arguments.max_documents)
    return [chunk for index in range(len(documents)) for chunk in chunks_of(documents, index, length, 1)]


def _numbers(model: CausalLM, chunk: Chunk, lengths: ContextLengths, batching: Batching) -> ChunkNumbers:
    """As the stage influential_tokens measures a chunk."""
    measurement = Measurement(model, lengths, batching)
    contexts = far_contexts(measurement, chunk.token_ids_L, chunk.null_token_ids_L)
    selections = {
        name: (context, selected_positions(context, "leave_one_out", K, [0]))
        for name, context in contexts.items()
    }
    return ChunkNumbers(
        contexts[OWN].short.losses,
        contexts[OWN].long_losses_T,
        {name: context.influence_TF for name, context in contexts.items()},
        selections,
        _sparse_losses(model, selections),
    )


def _sparse_losses(model: CausalLM, selections: Selections) -> dict[str, np.ndarray]:
    """By far context: loss(t | short and the selected tokens), as `model` has it."""
    return {
        name: replace(context, measurement=replace(context.measurement, model=model))
        .measured_with(np.arange(len(positions_TK)), positions_TK[:, :K])
        .losses
        for name, (context, positions_TK) in selections.items()
    }


def compared(numbers: dict[str, list[ChunkNumbers]]) -> dict[str, Any]:
    """The two dtypes side by side."""
    pairs = list(zip(numbers["float32"], numbers["bfloat16"], strict=True))
    contexts = {}
    for name in numbers["float32"][0].influence_TF:
        fractions = {dtype: _recovered_fraction(chunks, name) for dtype, chunks in numbers.items()}
        influences = [(exact.influence_TF[name], coarse.influence_TF[name]) for exact, coarse in pairs]
        contexts[name] = {
            "recovered_fraction": fractions,
            "difference": fractions["bfloat16"] - fractions["float32"],
            "top_8_overlap": float(np.mean([top_k_overlap(*both, K) for both in influences])),
            "influence_rms_nats": _rms([exact for exact, _ in influences]),
            "influence_error_rms_nats": _rms([coarse - exact for exact, coarse in influences]),
            "rank_correlation": float(np.mean([rank_correlation(*both) for both in influences])),
        }
    return {
        "mean_gain_nats": {dtype: float(_gains(chunks).mean()) for dtype, chunks in numbers.items()},
        "far_contexts": contexts,
    }


def _rms(values: list[np.ndarray]) -> float:
    """Root mean square over all that is no NaN."""
    return float(np.sqrt(np.nanmean(np.concatenate([of_chunk.ravel() for of_chunk in values]) ** 2)))


def _gains(chunks: list[ChunkNumbers]) -> np.ndarray:
    """L_short - L_long of every target, nats."""
    return np.concatenate([chunk.short_losses_T - chunk.long_losses_T for chunk in chunks]).astype(float)


def _recovered_fraction(chunks: list[ChunkNumbers], far_context: str) -> float:
    """A ratio of sums over all targets."""
    recovered = [chunk.short_losses_T - chunk.sparse_losses_T[far_context] for chunk in chunks]
    return float(np.concatenate(recovered).astype(float).sum() / _gains(chunks).sum())


def table(report: dict[str, Any]) -> str:
    """For a reader."""
    gains = report["mean_gain_nats"]
    lines = [
        f"{report['num_chunks']} chunks; gain of the long context {gains['float32']:.4f} nats in float32,"
        f" {gains['bfloat16']:.4f} in bfloat16",
        f"{'far context':16}{'recovered: float32':>20}{'bfloat16':>10}{'judged':>9}{'difference':>12}"
        f"{'top-8':>8}{'ranks':>8}{'influence rms':>15}{'its error':>12}",
    ]
    for name, row in report["far_contexts"].items():
        fractions = row["recovered_fraction"]
        lines.append(
            f"{name:16}{fractions['float32']:20.4f}{fractions['bfloat16']:10.4f}{fractions[JUDGED]:9.4f}{row['difference']:12.4f}"
            f"{row['top_8_overlap']:8.3f}{row['rank_correlation']:8.3f}"
            f"{row['influence_rms_nats']:15.4f}{row['influence_error_rms_nats']:12.4f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    run_stage(parser(), main)
