"""Which search's tokens carry over to other swapped contexts? The experiment of the log, 2026-11-29.

  python analysis/which_search.py --data DATA --selector MODEL --evaluators MODEL … --out FOLDER

Searches: one swapped context; the mean of four; removal; blocks of four tokens in one; attention. Baselines:
recency, random. Each choice is tried in two other swapped contexts, that of one swap also in its own. A file
per document and evaluator, a row per target, search, k and swap.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.cli import folder_path, positive_int, progress, run_stage, stage_parser
from pipeline.measuring.contexts import Batching, Measured
from pipeline.measuring.far_context import FarContext, leave_blocks_out, leave_each_out
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.given import GivenModel
from pipeline.measuring.rules import ranked, selected_positions
from pipeline.models.interface import CausalLM
from pipeline.text.chunks import Chunk, chunks_of, long_enough_documents
from pipeline.text.folder import TokenizedData

TRIALS, SEARCHES, BLOCK = 2, 4, 4


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--data", type=folder_path, required=True, help="folder written by tokenize_c4.py")
    add("--selector", required=True, help="the model that chooses")
    add("--evaluators", nargs="+", required=True, help="models that try the choices")
    add("--out", type=folder_path, required=True, help="folder of Parquet; documents in it are kept")
    add("--short-context-length", type=positive_int, default=16, help="s")
    add("--long-context-length", type=positive_int, default=256, help="ℓ")
    add("--targets-per-chunk", type=positive_int, default=8, help="m")
    add("--target-stride", type=positive_int, default=1, help="every so-many-th of them")
    add("--k", type=positive_int, nargs="+", default=[1, 4, 16, 64], help="numbers of tokens")
    add("--documents", type=positive_int, nargs=2, default=[0, 32], help="the first and the end, by hash")
    return program


def effects(own: FarContext, swap_L: np.ndarray | None) -> np.ndarray:
    """KL by which leaving out each distant token moves the prediction: [T, F], nats."""
    ((sequence, full),) = own.sequences
    return leave_blocks_out(own.model, sequence, own.batching, full, [swap_L], None)[0, 1]


def block_effects(own: FarContext, swap_L: np.ndarray) -> np.ndarray:
    """The same of blocks of `BLOCK` tokens, shared by their tokens; of those behind them, each its own."""
    ((sequence, full),) = own.sequences
    whole = int(own.num_far_tokens_T[0]) // BLOCK * BLOCK
    starts_R = np.arange(0, whole, BLOCK)
    given = own.model, sequence, own.batching, full
    of_blocks = leave_each_out(*given, starts_R, width=BLOCK, replacement_ids_L=swap_L).divergences
    rest_R = np.arange(whole, int(own.num_far_tokens_T[-1]))
    scores_TF = leave_each_out(*given, rest_R, replacement_ids_L=swap_L).divergences
    scores_TF[:, :whole] = np.repeat(of_blocks[:, starts_R] / BLOCK, BLOCK, axis=1)
    return scores_TF


def choices(model: CausalLM, lengths: ContextLengths, chunk: Chunk, max_k: int) -> dict[str, np.ndarray]:
    """Search -> chosen positions, first ones first: int64 [T, K]."""
    own = FarContext(model, lengths, Batching.for_model(model), chunk.token_ids_L, chunk.token_ids_L)
    swaps_BL = chunk.other_token_ids_NL[1 + TRIALS :]
    of_swaps_BTF = np.stack([effects(own, swap_L) for swap_L in swaps_BL])
    scores = {
        "one swap": of_swaps_BTF[0],
        "four swaps": of_swaps_BTF.mean(0),
        "removal": effects(own, None),
        "blocks": block_effects(own, swaps_BL[0]),
    }
    seed = (0, int(chunk.document_id, 16), chunk.chunk_index)
    return {name: ranked(scores_TF, max_k) for name, scores_TF in scores.items()} | {
        rule: selected_positions(own, rule, max_k, seed) for rule in ("attention", "recency", "random")
    }


def tried(
    model: CausalLM, lengths: ContextLengths, chunk: Chunk, chosen: dict[str, np.ndarray], ks: list[int]
) -> pd.DataFrame:
    """A row a target, search, k and swap: loss and KL with the tokens, and before."""
    trials_BL = chunk.other_token_ids_NL[1 : 2 + TRIALS]  # the last of these is the one swap of the search
    given = model, lengths, Batching.for_model(model), chunk.token_ids_L, chunk.token_ids_L
    other = FarContext(*given, trial_swaps_BL=trials_BL[:TRIALS])
    same = FarContext(*given, trial_swaps_BL=trials_BL[TRIALS:])
    targets_T = np.arange(lengths.num_targets)
    rows = []
    for kind, own, searches in (("other", other, list(chosen)), ("same", same, ["one swap", "recency"])):
        for k in ks:
            sets_NK = np.concatenate([chosen[search][:, :k] for search in searches])
            found = own.measured_with(np.tile(targets_T, len(searches)), sets_NK)
            for place, search in enumerate(searches):
                part = slice(place * len(targets_T), (place + 1) * len(targets_T))
                left = Measured(found.losses[part], found.divergences[part])
                for swap in range(left.losses.shape[1]):
                    rows.append(
                        pd.DataFrame(
                            {
                                "document_id": chunk.document_id,
                                "target_position": chunk.start + lengths.targets_T,
                                "search": search,
                                "k": k,
                                "swaps": kind,
                                "swap": swap,
                                "long_context_loss": own.long_losses_T,
                                "swapped_loss": own.baselines.losses[:, swap],
                                "swapped_divergence": own.baselines.divergences[:, swap],
                                "loss": left.losses[:, swap],
                                "divergence": left.divergences[:, swap],
                            }
                        )
                    )
    return pd.concat(rows, ignore_index=True)


def main(arguments: argparse.Namespace) -> None:
    """Measure what is missing."""
    lengths = ContextLengths.of(vars(arguments))
    data = TokenizedData.open(arguments.data)
    num_others = 1 + TRIALS + SEARCHES
    documents = long_enough_documents(data, lengths.long_context_length, None, num_others)
    models: dict[str, CausalLM] = {}
    for word in dict.fromkeys([arguments.selector, *arguments.evaluators]):
        given = GivenModel(word)
        texts = (document.token_ids for document in documents)
        models[word] = given.ready(lengths.long_context_length, texts, data.tokenizer(), data.bos_token_ids)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for index in progress(range(*arguments.documents), "which_search", "document"):
        (chunk,) = chunks_of(documents, index, lengths.long_context_length, 1, num_others)
        path = arguments.out / f"{chunk.document_id}.parquet"
        if path.exists():
            continue
        chosen = choices(models[arguments.selector], lengths, chunk, max(arguments.k))
        frames = [
            tried(models[word], lengths, chunk, chosen, arguments.k).assign(evaluator=Path(word).name)
            for word in arguments.evaluators
        ]
        pd.concat(frames, ignore_index=True).to_parquet(path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    run_stage(parser(), main)
