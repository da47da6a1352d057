"""Texts of a test's choosing, tokenized and "measured" by random numbers: what explorer.py reads."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.results.write import StageOutput
from pipeline.text.folder import (
    EVALUATION_FILE,
    TOKENIZER_FILE,
    EvaluationDocument,
    write_evaluation_documents,
)
from pipeline.text.tokenizer import train_bpe

SHORT, LONG, TARGETS = 4, 32, 5
KS = [1, 2, 4, 8]
RULES = ["leave_one_out", "nearest"]
MODELS = ["long <b>", "other"]
Study = tuple[Sequence[str], tuple[int, int, int], Sequence[int], str]
"""Rules, lengths, ks, intervention."""
LOSSES_ONLY = "short"
"""A model with loss differences and no influential tokens."""


def write_explorable(
    folder: Path,
    texts: Sequence[str],
    models: Sequence[str] = MODELS,
    rules: Sequence[str] = RULES,
    lengths: tuple[int, int, int] = (SHORT, LONG, TARGETS),
    ks: Sequence[int] = KS,
    intervention: str = "remove",
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
    assert all(len(document.token_ids) >= lengths[1] for document in documents), (
        "a text is shorter than a chunk"
    )
    write_evaluation_documents(data / EVALUATION_FILE, documents)
    (data / TOKENIZER_FILE).write_text(tokenizer.to_json())
    files = {name: (data / name).read_bytes() for name in (EVALUATION_FILE, TOKENIZER_FILE)}
    manifest = {
        "stage": "tokenize_c4", "token_dtype": "uint16", "vocabulary_size": tokenizer.vocabulary_size,
        "eos_token_id": 0, "counts": {"train_tokens": 0},
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        },
    }  # fmt: skip
    (data / "manifest.json").write_text(json.dumps(manifest))
    documents.sort(key=lambda document: document.document_id)
    sha256 = hashlib.sha256(files[EVALUATION_FILE]).hexdigest()
    for index, model in enumerate([*models, LOSSES_ONLY]):
        generator = np.random.default_rng(index)
        _write_model(
            folder / "results", model, documents, sha256, (rules, lengths, ks, intervention), generator
        )
    return folder / "results", data


def _write_model(
    results: Path,
    model: str,
    documents: Sequence[EvaluationDocument],
    sha256: str,
    study: Study,
    generator: np.random.Generator,
) -> None:
    rules, lengths, ks, intervention = study
    settings = dict(
        zip(("short_context_length", "long_context_length", "targets_per_chunk"), lengths, strict=True)
    ) | {"num_documents": len(documents)}
    inputs = {"evaluation_documents": sha256}
    of_losses = StageOutput(
        results, "loss_differences", model, settings=settings, inputs=inputs, num_shards=1
    )
    losses, selections = _tables(documents, study, model, generator)
    of_losses.write_shard(0, {"loss_differences": losses})
    if model != LOSSES_ONLY:
        settings |= {
            "k": list(ks), "rules": list(rules), "intervention": intervention, "recovery_fraction": 0.9,
            "minimum_gain": 0.1,
        }  # fmt: skip
        StageOutput(
            results, "influential_tokens", model, settings=settings, inputs=inputs, num_shards=1
        ).write_shard(0, selections)


def _tables(
    documents: Sequence[EvaluationDocument],
    study: Study,
    model: str,
    generator: np.random.Generator,
) -> tuple[dict[str, list], dict[str, dict[str, list]]]:
    rules, (short_length, long_length, num_targets), ks, intervention = study
    with_background = intervention == "background"
    losses: list[dict] = []
    tables: dict[str, list[dict]] = {
        "influential_tokens": [], "sparse_context_losses": [], "dependency_sparsity": []
    }  # fmt: skip
    for index, document in enumerate(documents):
        null_ids = documents[(index + 1) % len(documents)].token_ids
        for chunk_index in range(len(document.token_ids) // long_length):
            start = chunk_index * long_length
            null_start = chunk_index % (len(null_ids) // long_length) * long_length
            for position in range(start + long_length - num_targets, start + long_length):
                target = {
                    "document_id": document.document_id, "chunk_index": chunk_index,
                    "target_position": position,
                }  # fmt: skip
                short, long, expected, specific, background = generator.gamma(4, 1, 5).round(6)
                both = {"short_context_loss": short, "long_context_loss": long}
                of_background = {"background_loss": background if with_background else None}
                losses.append(
                    target | both | {
                        "target_token_id": document.token_ids[position], "loss_difference": short - long,
                        "num_long_context_tokens": position - start, "windowed_short_context_loss": None,
                        "short_context_divergence": expected, "specific_gain": specific,
                    }
                )  # fmt: skip
                for rule in rules:
                    k_star = [None, 2, None][position % 3]
                    tables["dependency_sparsity"] += [
                        target | {
                            "rule": rule, "loss_difference": short - long, "criterion": criterion,
                            "dependency_sparsity": k_star if criterion == "loss" else 4,
                            "is_censored": position % 3 == 2 and criterion == "loss",
                        }
                        for criterion in ("loss", "divergence")
                    ]  # fmt: skip
                    for far_context in ("own", "other_document"):
                        here = target | {"rule": rule, "far_context": far_context}
                        far = generator.permutation(np.arange(start, position - short_length))[: max(ks)]
                        tables["sparse_context_losses"] += [
                            here | both | of_background | {
                                "k": k, "sparse_context_loss": generator.gamma(4, 1),
                                "sparse_context_divergence": generator.gamma(1, 1),
                            }
                            for k in ks
                        ]  # fmt: skip
                        tables["influential_tokens"] += [
                            here | {
                                "rank": rank + 1, "context_position": place, "distance": position - place,
                                "context_token_id": document.token_ids[place]
                                if far_context == "own" else null_ids[null_start + place - start],
                                "influence": None if model == "other" else generator.normal(),
                            }
                            for rank, place in enumerate(far)
                        ]  # fmt: skip
    return _columns(losses), {name: _columns(rows) for name, rows in tables.items()}


def _columns(rows: list[dict]) -> dict[str, list]:
    return {name: [row[name] for row in rows] for name in rows[0]}
