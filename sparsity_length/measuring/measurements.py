"""What each measuring program measures of every chunk: a `Measurement` of its command line and settings."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from sparsity_length.cli import InputError
from sparsity_length.measuring.placed import measure_placements, read_distant
from sparsity_length.measuring.selecting import Evaluating, Selecting
from sparsity_length.measuring.settings import BesideShort, ByLength, ContextLengths, Job, Placing
from sparsity_length.measuring.sparsity import (
    measure_chunk,
    measure_differences,
    measure_lengths,
    try_choices,
)
from sparsity_length.measuring.stage import Measurement
from sparsity_length.models.load import name_of
from sparsity_length.results.files import refuse_changes, sha256_of_files
from sparsity_length.results.read import Results
from sparsity_length.text.folder import TokenizedData

CHOOSING = "influential_tokens"


def losses(job: Job, asked: BesideShort | ByLength) -> Measurement:
    """Losses in a short, a long and a swapped context, or at several context lengths."""
    if isinstance(asked, ByLength):
        return Measurement(
            "length_losses", asked, partial(measure_lengths, asked=asked), num_other_documents=0
        )
    return Measurement("loss_differences", asked, partial(measure_differences, lengths=asked.lengths))


def influential_tokens(job: Job, selecting: Selecting) -> Measurement:
    """What the rules choose, and what that is worth to the model that chose."""
    return Measurement(
        CHOOSING,
        selecting,
        partial(measure_chunk, selecting=selecting),
        selecting.num_others,
        rule_files=job.rule_file or (),
    )


def evaluated_tokens(job: Job, asked: Evaluating) -> Measurement:
    """What one model's choices are worth to others."""
    results = Results(asked.choices)
    selector, made_by = _made_by(job, asked, results)
    # As many documents as were used: nulls and swaps are the next ones, and wrap around at the last.
    chosen = Selecting.of(made_by["settings"], max_documents=made_by["settings"]["num_documents"])
    tried = asked.tried(chosen)
    _refuse_other_choices(job, selector, tried)
    choices = _read_choices(results, selector, chosen.lengths)
    first_searched = 1 + (chosen.trial_swaps or 0)
    searched = slice(first_searched, first_searched + (chosen.search_swaps or 0))
    files = results.sources(CHOOSING, [selector], must_be_complete=True)
    return Measurement(
        "evaluate_tokens",
        tried,
        partial(try_choices, selecting=tried, choices=choices, searched=searched),
        tried.num_others,
        rule_files=job.rule_file or (),
        selector=selector,
        inputs={
            "checkpoint": made_by["inputs"]["checkpoint"],
            "choices": sha256_of_files(*(file.path for file in files)),
        },
        model_facts=results.facts(CHOOSING)[selector],
    )


def _made_by(job: Job, asked: Evaluating, chosen: Results) -> tuple[str, dict[str, Any]]:
    """Who chose, and what made the choices; refuse other text than theirs."""
    found = chosen.made_by(CHOOSING)
    name = asked.choices_of or next(iter(found), None)
    if name not in found or (asked.choices_of is None and len(found) > 1):
        raise InputError(
            f"--choices {asked.choices} holds choices of {', '.join(found) or 'no model'}; name one with"
            " --choices-of"
        )
    data = TokenizedData.open(job.data)
    made_by = found[name]
    is_same_text = made_by["inputs"]["evaluation_documents"] == data.evaluation_sha256
    if not is_same_text or made_by["settings"]["bos_token_ids"] != list(data.bos_token_ids):
        raise InputError(f"--choices {asked.choices} are of another text than that of {job.data}")
    return name, made_by


def _read_choices(
    chosen: Results, selector: str, lengths: ContextLengths
) -> dict[tuple[Any, ...], np.ndarray]:
    """Document, chunk, distant context and rule -> positions counted from the start of the chunk: [T, K]."""
    keys = ["document_id", "chunk_index", "distant_context", "rule"]
    order = [*keys, "target_position", "rank"]
    rows = chosen.frame(CHOOSING, [*order, "context_position"], {"model": [selector]})
    rows["context_position"] -= rows["chunk_index"] * lengths.long_context_length
    # Sorted by target and rank, and every target has all ranks.
    of_rules = rows.sort_values(order).groupby(keys, sort=False)["context_position"]
    return {key: positions.to_numpy().reshape(lengths.num_targets, -1) for key, positions in of_rules}


def _refuse_other_choices(job: Job, selector: str, tried: Selecting) -> None:
    """Refuse a --results folder in which the selector chose otherwise, or has tried its own choice."""
    earlier = Results(job.results).made_by(CHOOSING).get(selector)
    if earlier is None:
        return
    if selector in map(name_of, job.checkpoints):
        raise InputError(f"model '{selector}' has tried its own choice in {job.results} when it chose")
    now = {name: tried.as_metadata.get(name) for name in tried.as_given if name != "max_documents"}
    refuse_changes(
        f"{job.results} holds {CHOOSING} of model '{selector}'",
        earlier,
        {**earlier, "settings": earlier["settings"] | now},
        "--results folder",
    )


def length_interference(job: Job, placing: Placing) -> Measurement:
    """What distant tokens do to predictions, by their number, their distance and their text."""
    swaps = placing.distant_reads
    texts = _distant_texts(job.data, placing.distant_documents, max(swaps)[0]) if swaps else {}
    read = lru_cache(maxsize=1)(partial(read_distant, texts, swaps))  # the next model's push them out
    return Measurement(
        "length_interference",
        replace(placing, distant_documents=tuple(texts) or None),
        lambda model, chunk: measure_placements(model, chunk, placing, read(model)),
        num_other_documents=0,
        # IDs may lie far beyond the chunk: tables of positions must reach the last near token.
        num_positions=placing.num_positions,
    )


def _distant_texts(data: Path, named: Sequence[str] | None, num_tokens: int) -> dict[str, np.ndarray]:
    """The first tokens of the documents named, or of the last three with so many."""
    tokens_of = {
        document.document_id: document.token_ids[:num_tokens].astype(np.int64)
        for document in TokenizedData.open(data).evaluation_documents()
        if len(document.token_ids) >= num_tokens
    }
    # The last by hash: --max-documents takes the first, so the two seldom meet.
    names = named or [*tokens_of][-3:]
    if not names or not set(names) <= set(tokens_of):
        raise InputError(f"swap needs texts of {num_tokens:,} tokens; --distant-documents may name such")
    return {name: tokens_of[name] for name in names}
