"""What bfloat16 changes in the conclusions, on a trained model and its text.

Influences of one chunk of each document are measured in float32 and in bfloat16, for the own far context and
for the null. Each dtype then selects its own 8 tokens and measures its own losses under short context and
selection, as influential_tokens would with that --dtype. Shown for each far context:
  recovered fraction   sum of L_short - L_short+8 over sum of L_short - L_long; `judged`: bfloat16's tokens
                       with float32's losses, what coarse influences choose, judged exactly
  top-8 overlap        share of each target's 8 tokens that both dtypes choose
  rank correlation     Spearman's, of the influences of each target's far tokens
A recovered fraction is a ratio: where the gain L_short - L_long (it is printed) is small, errors grow.

on a run of a study (minutes on 2 cores):
  python tests/benchmarks/bfloat16_agreement.py --checkpoint runs/c4/models/long-seed0 --data runs/c4/data \\
      --short-context-length 16 --long-context-length 256 --out runs/benchmarks/bfloat16_agreement.json

Shapes: T targets (of all documents), F far tokens.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from matrix_product_peak import DTYPES, machine, use_threads

from pipeline.cli import InputError, positive_int, progress, run_stage, stage_parser
from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import FarContext, far_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import selected_positions
from pipeline.models.interface import CausalLM
from pipeline.models.load import find_checkpoint, load_olmo
from pipeline.text.chunks import chunks_of, long_enough_documents
from pipeline.text.folder import TokenizedData

K = 8


def parser() -> argparse.ArgumentParser:
    """The command line."""
    script = stage_parser(__doc__)
    add = script.add_argument
    add("--checkpoint", type=Path, required=True, help="run folder of pretrain.py, or a step<N>-unsharded")
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
    device, length = torch.device(arguments.device), arguments.long_context_length
    lengths = ContextLengths(arguments.short_context_length, length, arguments.targets_per_chunk)
    if lengths.num_far_tokens_T[0] < K:
        raise InputError(f"the first target has {lengths.num_far_tokens_T[0]} far tokens, fewer than {K}")
    data = TokenizedData.open(arguments.data)
    documents = long_enough_documents(data, length, arguments.max_documents)
    folder = find_checkpoint(arguments.checkpoint)
    models = [load_olmo(folder, device, dtype) for dtype in DTYPES.values()]
    rows: dict[str, list[dict[str, object]]] = {"own": [], "other_document": []}
    for index in progress(range(len(documents)), "both dtypes", "chunk"):
        chunk = chunks_of(documents, index, length, 1)[0]
        measurements = [Measurement(model, lengths, Batching(arguments.tokens_per_batch)) for model in models]
        exact, coarse = (
            far_contexts(measurement, chunk.token_ids_L, chunk.null_token_ids_L)
            for measurement in measurements
        )
        # The gain is the own far context's, in both.
        gains = [float((own.short.losses - own.long_losses_T).sum()) for own in (exact["own"], coarse["own"])]
        for name in rows:
            measured = numbers(exact[name], coarse[name], models[0])
            rows[name].append(measured | dict(zip(DTYPES, gains, strict=True)))
    report = {
        "settings": vars(arguments), "machine": machine(device), "num_chunks": len(documents),
        "far_contexts": {name: summary(pd.DataFrame(of_context)) for name, of_context in rows.items()},
    }  # fmt: skip
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1, default=str) + "\n")
    print(pd.DataFrame(report["far_contexts"]).round(4).to_string())


def numbers(exact: FarContext, coarse: FarContext, float32_model: CausalLM) -> dict[str, object]:
    """Of one chunk and far context: sums over its targets, means of squares, agreement."""
    chosen, chosen_coarse = (selected_positions(of, "leave_one_out", K, [0]) for of in (exact, coarse))
    judged = replace(coarse, measurement=replace(coarse.measurement, model=float32_model))
    difference_TF = coarse.influence_TF - exact.influence_TF
    return {
        "recovered_float32": recovered(exact, chosen, exact),
        "recovered_bfloat16": recovered(coarse, chosen_coarse, coarse),
        "recovered_judged": recovered(judged, chosen_coarse, exact),
        "top_8_overlap": overlap(chosen, chosen_coarse),
        "rank_correlation": rank_correlation(exact.influence_TF, coarse.influence_TF),
        "influence_square": float(np.nanmean(exact.influence_TF**2)),
        "error_square": float(np.nanmean(difference_TF**2)),
    }


def recovered(context: FarContext, positions_TK: np.ndarray, short_of: FarContext) -> float:
    """Sum over targets of L_short - L_short+8, nats."""
    measured = context.measured_with(np.arange(len(positions_TK)), positions_TK).over_backgrounds
    return float((short_of.short.losses - measured.losses).sum())


def overlap(positions_TK: np.ndarray, other_TK: np.ndarray) -> float:
    """Mean share of a target's tokens that the other choice names too."""
    pairs = zip(positions_TK.tolist(), other_TK.tolist(), strict=True)
    return float(np.mean([len(set(ours) & set(theirs)) / len(ours) for ours, theirs in pairs]))


def rank_correlation(influence_TF: np.ndarray, other_TF: np.ndarray) -> float:
    """Spearman's correlation over each target's far tokens, mean over targets; NaN is no far token."""
    ranks, other_ranks = (pd.DataFrame(values).rank(axis=1) for values in (influence_TF, other_TF))
    return float(ranks.corrwith(other_ranks, axis=1).mean())


def summary(chunks: pd.DataFrame) -> dict[str, float]:
    """Over all chunks: ratios of sums, root mean squares, means."""
    gain, gain_bfloat16 = chunks["float32"].sum(), chunks["bfloat16"].sum()
    return {
        "recovered_fraction_float32": chunks["recovered_float32"].sum() / gain,
        "recovered_fraction_bfloat16": chunks["recovered_bfloat16"].sum() / gain_bfloat16,
        "recovered_fraction_judged": chunks["recovered_judged"].sum() / gain,
        "top_8_overlap": chunks["top_8_overlap"].mean(),
        "rank_correlation": chunks["rank_correlation"].mean(),
        "influence_rms_nats": float(np.sqrt(chunks["influence_square"].mean())),
        "influence_error_rms_nats": float(np.sqrt(chunks["error_square"].mean())),
    }


if __name__ == "__main__":
    run_stage(parser(), main)
