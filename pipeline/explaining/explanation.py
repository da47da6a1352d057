"""One text explained: found model, read text, measured targets, and all of it as a table.

Shapes: N tokens of the text, L measured tokens, T targets.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from pipeline.errors import InputError
from pipeline.explaining.asked import Asked, Part, measured_part
from pipeline.explaining.measuring import Measurements, OfRule, measure
from pipeline.explaining.work import UncomputedLM, WatchedLM, Work, measured_speed
from pipeline.influence.batching import Batching
from pipeline.measuring.dtypes import AUTO
from pipeline.models.causal_lm import CausalLM, NotFiniteLossError
from pipeline.models.devices import usable_device
from pipeline.models.loading import Checkpoint, Loading, find_model, load_causal_lm
from pipeline.models.memory import keep_freed_memory, out_of_memory_in_words
from pipeline.stage import progress_bar
from pipeline.text.embedded_corpus import first_passages
from pipeline.text.manifest import TOKENIZER_FILE
from pipeline.text.tokenized_text import TokenizedText, tokenized_text
from pipeline.text.tokenizer import parse_tokenizer_name
from pipeline.training.precision import faster_dtype

_SMALL_BYTES = 200_000_000
"""Weights of fewer are measured in float32 by --dtype auto: it is quick enough, and their influences are as
small as bfloat16's rounding."""
_CHARACTERS_A_TOKEN = 4
_LONG_SECONDS = 600

logger = logging.getLogger("pipeline")


@dataclass(frozen=True, eq=False)
class Explanation:
    """A text, and what was measured of it."""

    asked: Asked
    model_name: str
    dtype: str
    """As torch calls it."""
    text: TokenizedText
    foreign: TokenizedText
    """Stands in for the far context."""
    part: Part
    measurements: Measurements

    @property
    def targets_T(self) -> np.ndarray:
        """Places of the targets in the text's tokens: int64."""
        return self.part.first_token + self.part.lengths.targets_T

    @property
    def pieces_L(self) -> list[str]:
        """The text of each measured token."""
        return self.text.pieces[self.part.first_token : self.part.end]

    @property
    def foreign_pieces_L(self) -> list[str]:
        """The text of the foreign token at the place of each measured one."""
        return self.foreign.pieces[: self.part.lengths.long_context_length]

    @property
    def gains_T(self) -> np.ndarray:
        """L_short - L_long, nats."""
        return self.measurements.short.losses - self.measurements.long_losses_T

    @property
    def specific_gains_T(self) -> np.ndarray:
        """What only this text gives: the loss in the foreign far context minus L_long, nats."""
        return self.measurements.foreign.losses - self.measurements.long_losses_T

    def frame(self) -> pd.DataFrame:
        """A row a target and rule; the columns are those that `pipeline.explain.explain` tells of."""
        parts = [self._of_rule(rule, of_rule) for rule, of_rule in self.measurements.of_rule.items()]
        return pd.concat(parts, ignore_index=True)

    def _of_rule(self, rule: str, of_rule: OfRule) -> pd.DataFrame:
        measured, targets_T = self.measurements, self.targets_T
        own, places_TK = of_rule.own, self.part.first_token + of_rule.own.positions_TK
        pieces = self.text.pieces
        columns: dict[str, Any] = {
            "position": targets_T,
            "byte_start": self.text.bytes_N2[targets_T, 0],
            "byte_end": self.text.bytes_N2[targets_T, 1],
            "token": [pieces[target] for target in targets_T],
            "token_id": self.text.token_ids_N[targets_T],
            "short_context_loss": measured.short.losses,
            "long_context_loss": measured.long_losses_T,
            "loss_difference": self.gains_T,
            "short_context_divergence": measured.short.divergences,
            "foreign_context_loss": measured.foreign.losses,
            "specific_gain": self.specific_gains_T,
            "rule": rule,
            "dependency_sparsity": pd.array(of_rule.k_star_T, dtype="Int64"),
            "is_censored": of_rule.is_censored_T,
            "source_positions": places_TK.tolist(),
            "source_tokens": [[pieces[place] for place in places] for places in places_TK.tolist()],
            "source_influences": _lists(own.influence_TK, len(targets_T)),
            "source_divergences": _lists(own.divergence_TK, len(targets_T)),
            "k": [list(self.part.ks)] * len(targets_T),
            "sparse_context_losses": own.sparse_TJ.losses.tolist(),
            "sparse_context_divergences": own.sparse_TJ.divergences.tolist(),
            "null_sparse_context_losses": _lists(
                None if of_rule.null is None else of_rule.null.sparse_TJ.losses, len(targets_T)
            ),
        }
        return pd.DataFrame(columns)


def _lists(values_TK: np.ndarray | None, num_targets: int) -> list[list[float] | None]:
    return [None] * num_targets if values_TK is None else values_TK.tolist()


def explained(text: str, asked: Asked) -> Explanation:
    """Explain a text, saying how long it will take, and showing progress, on standard error.

    Raises:
        InputError: text, model or flags cannot be used.
    """
    asked.refuse()
    keep_freed_memory()
    checkpoint = find_model(asked.model, asked.revision, asked.trust_remote_code)
    tokenizer_file = _tokenizer_file(checkpoint, asked)
    tokenized = tokenized_text(text, tokenizer_file)
    num_positions = checkpoint.num_positions(asked.trust_remote_code)
    part = measured_part(asked, len(tokenized.token_ids_N), num_positions)
    _tell_what_is_left_out(part, num_positions)
    foreign = _foreign_text(asked, part, tokenizer_file)
    device = usable_device(asked.device)
    dtype = _dtype(asked, checkpoint, device)
    loading = Loading(device, getattr(torch, dtype), trust_remote_code=asked.trust_remote_code)
    model = load_causal_lm(checkpoint, loading, part.lengths.long_context_length)
    _refuse_foreign_tokens(model, checkpoint, tokenized, tokenizer_file)
    ids = (
        tokenized.token_ids_N[part.first_token : part.end],
        foreign.token_ids_N[: part.lengths.long_context_length],
    )
    with _failures_in_words(checkpoint.name, part):
        measurements = _measured(model, checkpoint.name, ids, part, asked)
    return Explanation(asked, checkpoint.name, dtype, tokenized, foreign, part, measurements)


def _measured(
    model: CausalLM, name: str, ids: tuple[np.ndarray, np.ndarray], part: Part, asked: Asked
) -> Measurements:
    batching = Batching.for_model(model)
    speed = measured_speed(model, max(1, part.lengths.long_context_length // 2))
    work = planned_work(model, batching, part, asked)
    seconds = speed.seconds(work)
    logger.info(
        "%s: %d tokens, %d of them predicted, in about %s%s",
        name, part.lengths.long_context_length, part.lengths.targets_per_chunk, _in_words(seconds),
        "; a smaller --long-context-length is faster" if seconds > _LONG_SECONDS else "",
    )  # fmt: skip
    with progress_bar(None, "explain", "%", total=100) as bar:
        done = 0.0

        def advance(work_done: Work) -> None:
            nonlocal done
            done += speed.seconds(work_done)
            bar.update(min(100, int(100 * done / seconds)) - bar.n)

        measurements = measure(WatchedLM(model, advance), batching, *ids, part, asked)
        bar.update(100 - bar.n)
    return measurements


def planned_work(model: CausalLM, batching: Batching, part: Part, asked: Asked) -> Work:
    """What `measure` will ask of the model: the same run, with one that computes nothing."""
    total = Work()

    def add(work: Work) -> None:
        nonlocal total
        total += work

    nothing_L = np.zeros(part.lengths.long_context_length, dtype=np.int64)
    measure(WatchedLM(UncomputedLM(model), add), replace(batching), nothing_L, nothing_L, part, asked)
    return total


def _in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


@contextmanager
def _failures_in_words(name: str, part: Part) -> Iterator[None]:
    """Turn what the model fails at into a sentence.

    Raises:
        InputError: a loss is no number, or the memory does not suffice.
    """
    try:
        with out_of_memory_in_words("choose a smaller --long-context-length, or --dtype bfloat16"):
            yield
    except NotFiniteLossError as error:
        raise InputError(
            f"model '{name}' gives the token at position {part.first_token + error.target_position} a"
            f" {error.what} of {error.loss}: its weights are damaged, or --dtype is too coarse for them"
        ) from error


def _tokenizer_file(checkpoint: Checkpoint, asked: Asked) -> Path:
    """The tokenizer.json that is asked for, or that lies by the model.

    Raises:
        InputError: there is none.
    """
    if asked.tokenizer is not None:
        found = parse_tokenizer_name(asked.tokenizer)
        if isinstance(found, int):
            raise InputError(
                f"--tokenizer {asked.tokenizer} would be trained anew; name the tokenizer.json that the model"
                " was trained with"
            )
        return found
    folder = checkpoint.folder.resolve()
    # A run of pretrain.py lies beside its data as the programs here name their folders.
    places = [folder, folder.parent, *(above / "data" for above in list(folder.parents)[:3])]
    for place in places if checkpoint.is_olmo else places[:1]:
        if (place / TOKENIZER_FILE).is_file():
            return place / TOKENIZER_FILE
    raise InputError(
        f"{asked.model} brings no {TOKENIZER_FILE}; name the one that it was trained with with --tokenizer"
    )


def _tell_what_is_left_out(part: Part, num_positions: int | None) -> None:
    if not part.first_token:
        return
    length = part.lengths.long_context_length
    why = ", the positions the model was made for (--long-context-length sets another number)"
    logger.info(
        "the text has %d tokens, of which the last %d are measured%s",
        part.end, length, why if length == num_positions else "",
    )  # fmt: skip


def _foreign_text(asked: Asked, part: Part, tokenizer_file: Path) -> TokenizedText:
    """A foreign text of at least as many tokens as are measured.

    Raises:
        InputError: the one asked for is shorter.
    """
    wanted = part.lengths.long_context_length
    if asked.foreign_text is not None:
        given = tokenized_text(asked.foreign_text, tokenizer_file)
        if len(given.token_ids_N) < wanted:
            raise InputError(
                f"the foreign text has {len(given.token_ids_N)} tokens, and {wanted} are measured; give a"
                " longer one, or a smaller --long-context-length"
            )
        return given
    num_characters = _CHARACTERS_A_TOKEN * wanted
    while True:
        passages = "\n\n".join(first_passages(num_characters))
        foreign = tokenized_text(passages, tokenizer_file)
        if len(foreign.token_ids_N) >= wanted:
            return foreign
        num_characters *= 2


def _dtype(asked: Asked, checkpoint: Checkpoint, device: torch.device) -> str:
    if asked.dtype != AUTO:
        return asked.dtype
    num_bytes = sum(path.stat().st_size for path in checkpoint.files(with_code=False))
    dtype = torch.float32 if num_bytes < _SMALL_BYTES else faster_dtype(device)
    return str(dtype).removeprefix("torch.")


def _refuse_foreign_tokens(
    model: CausalLM, checkpoint: Checkpoint, text: TokenizedText, tokenizer_file: Path
) -> None:
    if int(text.token_ids_N.max()) >= model.vocabulary_size:
        raise InputError(
            f"the tokenizer {tokenizer_file} gives token {int(text.token_ids_N.max())}, and"
            f" {checkpoint.folder} has a vocabulary of {model.vocabulary_size}: they do not belong together"
        )
