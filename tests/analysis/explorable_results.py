"""Texts of a test's choosing, tokenized and "measured" by random numbers: what explorer.py reads."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from measured_documents import write_folder
from written_results import write_tables

from sparsity_length.text.folder import EVALUATION_FILE, EvaluationDocument
from sparsity_length.text.tokenizer import train_bpe

SHORT = 4
LONG = 32
TARGETS = 5
KS = [1, 2, 4, 8]
RULES = ["leave_one_out", "recency"]
MODELS = ["long <b>", "other"]
LOSSES_ONLY = "short"
"""A model with loss differences and no influential tokens."""


def write_explorable(
    folder: Path,
    texts: Sequence[str],
    models: Sequence[str] = MODELS,
    lengths: tuple[int, int, int] = (SHORT, LONG, TARGETS),
    ablation: str = "mask",
) -> tuple[Path, Path]:
    """`folder`/results and `folder`/data of all whole chunks of all texts.

    Every influence of the model "other" is null, as where no rule measured it.

    `lengths`: short context, long context, targets a chunk.
    """
    data = folder / "data"
    tokenizer = train_bpe(texts, 600)
    documents = [
        EvaluationDocument(hashlib.sha256(text.encode()).hexdigest()[:16], token_ids)
        for text, token_ids in zip(texts, tokenizer.encode(texts), strict=True)
    ]
    assert all(len(document.token_ids) >= lengths[1] for document in documents), "a text is too short"
    write_folder(data, documents, tokenizer)
    documents.sort(key=lambda document: document.document_id)
    sha256 = hashlib.sha256((data / EVALUATION_FILE).read_bytes()).hexdigest()
    names = ("short_context_length", "long_context_length", "targets_per_chunk", "num_documents")
    of_losses = dict(zip(names, (*lengths, len(documents)), strict=True))
    of_selections = of_losses | {
        "k": KS,
        "rules": RULES,
        "ablation": ablation,
        "recovery_fraction": 0.9,
        "minimum_gain": 0.1,
    }
    results = folder / "results"
    inputs = {"evaluation_documents": sha256}
    for index, model in enumerate([*models, LOSSES_ONLY]):
        generator = np.random.default_rng(index)
        losses, selections = _tables(documents, lengths, ablation, model, generator)
        stages = {"loss_differences": (of_losses, {"loss_differences": losses})}
        if model != LOSSES_ONLY:
            stages["influential_tokens"] = (of_selections, selections)
        for stage, (settings, tables) in stages.items():
            write_tables(results, stage, model, settings, tables, inputs)
    return results, data


def _tables(
    documents: Sequence[EvaluationDocument],
    lengths: tuple[int, int, int],
    ablation: str,
    model: str,
    generator: np.random.Generator,
) -> tuple[list[dict], dict[str, list[dict]]]:
    short_length, long_length, num_targets = lengths
    with_swap = ablation == "swap"
    losses: list[dict] = []
    tables: dict[str, list[dict]] = {
        "influential_tokens": [],
        "sparse_context_losses": [],
        "dependency_sparsity": [],
    }
    for index, document in enumerate(documents):
        null_ids = documents[(index + 1) % len(documents)].token_ids
        for chunk_index in range(len(document.token_ids) // long_length):
            start = chunk_index * long_length
            null_start = chunk_index % (len(null_ids) // long_length) * long_length
            for position in range(start + long_length - num_targets, start + long_length):
                target = {
                    "document_id": document.document_id,
                    "chunk_index": chunk_index,
                    "target_position": position,
                }
                short, long, expected, specific, swap = generator.gamma(4, 1, 5).round(6)
                both = {"short_context_loss": short, "long_context_loss": long}
                of_swap = {"swapped_loss": swap if with_swap else None}
                losses.append(
                    target
                    | both
                    | {
                        "target_token_id": document.token_ids[position],
                        "loss_difference": short - long,
                        "num_long_context_tokens": position - start,
                        "short_context_divergence": expected,
                        "document_specific_gain": specific,
                    }
                )
                for rule in RULES:
                    k_star = [None, 2, None][position % 3]
                    tables["dependency_sparsity"] += [
                        target
                        | {
                            "rule": rule,
                            "loss_difference": short - long,
                            "gain": short - long if criterion == "loss" else expected,
                            "criterion": criterion,
                            "k_90": k_star if criterion == "loss" else 4,
                            "is_censored": position % 3 == 2 and criterion == "loss",
                        }
                        for criterion in ("loss", "divergence")
                    ]
                    for distant_context in ("own", "other_document"):
                        here = target | {"rule": rule, "distant_context": distant_context}
                        far = generator.permutation(np.arange(start, position - short_length))[: max(KS)]
                        tables["sparse_context_losses"] += [
                            here
                            | both
                            | of_swap
                            | {
                                "k": k,
                                "sparse_context_loss": generator.gamma(4, 1),
                                "sparse_context_divergence": generator.gamma(1, 1),
                            }
                            for k in KS
                        ]
                        tables["influential_tokens"] += [
                            here
                            | {
                                "rank": rank + 1,
                                "context_position": place,
                                "distance": position - place,
                                "context_token_id": document.token_ids[place]
                                if distant_context == "own"
                                else null_ids[null_start + place - start],
                                "influence": None if model == "other" else generator.normal(),
                            }
                            for rank, place in enumerate(far)
                        ]
    return losses, tables
