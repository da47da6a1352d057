"""How much work an explanation is, counted before it begins and while it goes on.

The very code that measures is run once with a model that computes nothing and counts what it is asked: so the
estimate is of what will be run, whatever the rules. Seconds are the counts times the speed of two short
passes of the real model.

Shapes: B batch, S rows, T query rows, N any number of rows, V vocabulary, D width.

What is measured of the tokens of one text.

Shapes: L measured tokens, T targets, K largest k, J studied values of k, F far-context positions.

One text explained: found model, read text, measured targets, and all of it as a table.

Shapes: N tokens of the text, L measured tokens, T targets.

An explanation as the explorer's page. Shapes: T targets.

An explanation for a terminal: the text, tokens that need far context coloured, and where they look.

Nothing in a text is obeyed: escape sequences and what turns the direction of writing are shown as numbers.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from pipeline.cli import InputError, progress_bar
from pipeline.explorer_page.writing import NATS, Record, page_of, to_json
from pipeline.measuring.contexts import Batching, Measured, Measurement, measured_in_foreign_context
from pipeline.measuring.far_context import FarContext, far_contexts, selected_positions, sparse_contexts
from pipeline.measuring.rules import RULES, Asked, Part, measured_part
from pipeline.measuring.sparsity import dependency_sparsity
from pipeline.measuring.stage import AUTO
from pipeline.models.devices import keep_freed_memory, out_of_memory_in_words, usable_device
from pipeline.models.interface import CausalLM, InspectableLM, NotFiniteLossError, Predictions, Prefix
from pipeline.models.load import Checkpoint, Loading, find_model, load_causal_lm
from pipeline.results.schemas import OTHER_DOCUMENT, OWN
from pipeline.results.table import as_table, printable
from pipeline.text.folder import TOKENIZER_FILE
from pipeline.text.sources import first_passages
from pipeline.text.tokenizer import TokenizedText, parse_tokenizer_name, tokenized_text
from pipeline.training.speed import faster_dtype

_TOKENS_TIMED = 1024
_ROWS_TIMED = 64
_BACKWARD = 2
"""Passes forward that one backward takes as long as."""


@dataclass(frozen=True)
class Work:
    """What a model is asked to compute."""

    num_tokens: int = 0
    """Rows through all layers."""
    num_projections: int = 0
    """Rows projected on the vocabulary, and compared with a prediction."""

    def __add__(self, other: "Work") -> "Work":
        return Work(self.num_tokens + other.num_tokens, self.num_projections + other.num_projections)


@dataclass(frozen=True)
class Speed:
    """Of one model on one device."""

    token_seconds: float
    projection_seconds: float

    def seconds(self, work: Work) -> float:
        """What `work` takes."""
        return work.num_tokens * self.token_seconds + work.num_projections * self.projection_seconds


class WatchedLM:
    """A model that tells of every pass what it was, once it is done. Its numbers are the model's own."""

    def __init__(self, model: CausalLM, done: Callable[[Work], None]) -> None:
        self._done = done
        self.vocabulary_size, self.num_parameters = model.vocabulary_size, model.num_parameters
        self.device, self.sequence_bytes = model.device, model.sequence_bytes
        self.read, self.hidden_states = (
            self._told(read, lambda token_ids_BS: Work(num_tokens=token_ids_BS.numel()))
            for read in (model.read, model.hidden_states)
        )
        self.logits = self._told(model.logits, lambda hidden_ND: Work(num_projections=len(hidden_ND)))
        if isinstance(model, InspectableLM):  # else rules that look inside are to find that it is not
            self.embed = model.embed
            self.watch_attention = self._watched(model.watch_attention, 0)
            self.gate_gradients = self._watched(model.gate_gradients, _BACKWARD)
            self.losses_of_embeddings = self._watched(model.losses_of_embeddings, 1)

    def _told(self, compute: Callable[..., Any], work: Callable[[torch.Tensor], Work]) -> Callable[..., Any]:
        """The same, told of: the work that the first argument makes."""

        def told(rows: torch.Tensor, *more: Any, **named: Any) -> Any:
            answer = compute(rows, *more, **named)
            self._done(work(rows))
            return answer

        return told

    def _watched(self, inspect: Callable[..., Any], num_backward: int) -> Callable[..., Any]:
        """The same, told of: rows forward, and as often as that for each query row backward."""

        def watched(
            rows_BS: torch.Tensor,
            position_ids_1S: torch.Tensor,
            visible_1SS: torch.Tensor | None,
            query_rows_T: torch.Tensor | None,
            *more: Any,
        ) -> Any:
            answer = inspect(rows_BS, position_ids_1S, visible_1SS, query_rows_T, *more)
            num_queries = 0 if query_rows_T is None else len(query_rows_T)
            num_rows = rows_BS.shape[0] * rows_BS.shape[1]
            self._done(Work(num_tokens=num_rows * (1 + num_backward * num_queries)))
            return answer

        return watched


class UncomputedLM:
    """In the place of a model: answers at once, at random, so that rules choose as differently as they may.

    Its vocabulary is 0 and 1, its width 1.

    `CausalLM` and `InspectableLM`.
    """

    vocabulary_size, num_parameters, device = 2, 0, torch.device("cpu")

    def __init__(self, model: CausalLM) -> None:
        self.sequence_bytes = model.sequence_bytes  # so that batches are the model's
        self._prefix = Prefix(())
        self._generator = torch.Generator().manual_seed(0)

    def read(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_1T: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Prefix]:
        """See `CausalLM`."""
        return self.hidden_states(token_ids_1S, position_ids_1S, visible_1SS, query_rows_1T), self._prefix

    def hidden_states(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None,
        prefix: Prefix | None = None,
    ) -> torch.Tensor:
        """See `CausalLM`."""
        num_queries = token_ids_BS.shape[1] if query_rows_BT is None else query_rows_BT.shape[1]
        return torch.zeros(len(token_ids_BS), num_queries, 1)

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """See `CausalLM`."""
        return self._drawn(len(hidden_ND), self.vocabulary_size)

    def watch_attention(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor | None,
        note: Callable[[torch.Tensor], None],
    ) -> None:
        """See `InspectableLM`; one head of one layer."""
        num_rows = token_ids_1S.shape[1]
        num_queries = num_rows if query_rows_T is None else len(query_rows_T)
        note(self._drawn(num_queries, num_rows).softmax(-1)[None])

    def gate_gradients(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """See `InspectableLM`."""
        return self._drawn(len(query_rows_T), token_ids_1S.shape[1])

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """See `InspectableLM`."""
        return self._drawn(*token_ids_1S.shape)[..., None]

    def losses_of_embeddings(
        self,
        embedded_BSD: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """See `InspectableLM`."""
        weights_ST = self._drawn(embedded_BSD.shape[1], len(query_rows_T))
        return embedded_BSD[..., 0] @ weights_ST

    def _drawn(self, num_rows: int, num_columns: int) -> torch.Tensor:
        return torch.rand(num_rows, num_columns, generator=self._generator)


def measured_speed(model: CausalLM, num_rows: int) -> Speed:
    """The model's speed with sequences of so many rows, by two short passes."""
    batch_size = max(1, _TOKENS_TIMED // num_rows)
    tokens_BS = torch.zeros(batch_size, num_rows, dtype=torch.int64, device=model.device)
    positions_1S = torch.arange(num_rows, device=model.device)[None]

    def pass_through() -> torch.Tensor:
        return model.hidden_states(tokens_BS, positions_1S, None, None)

    hidden_BSD = pass_through()  # the first also sets libraries up
    trunk_seconds = _seconds(pass_through, model.device)
    hidden_ND = hidden_BSD.flatten(0, 1)[:_ROWS_TIMED]

    reference, index_N = Predictions.of(model, hidden_ND[:1]), torch.zeros(len(hidden_ND), dtype=torch.int64)

    def project() -> torch.Tensor:
        log_probs_NV = model.logits(hidden_ND).log_softmax(-1, dtype=torch.float32)
        return reference.divergences(log_probs_NV, index_N)

    project()
    return Speed(trunk_seconds / tokens_BS.numel(), _seconds(project, model.device) / len(hidden_ND))


def _seconds(compute: Callable[[], torch.Tensor], device: torch.device) -> float:
    started = time.perf_counter()
    compute()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


@dataclass(frozen=True, eq=False)
class Chosen:
    """The far tokens that a rule chose in one far context, and what they are worth."""

    positions_TK: np.ndarray
    """Places among the measured tokens, most influential first."""
    sparse_TJ: Measured
    """With the short context and the first k of them."""
    influence_TK: np.ndarray | None
    """loss(t | long without i) - loss(t | long), nats, NaN where not measured; None: of none."""
    divergence_TK: np.ndarray | None
    """KL(p(.|long) || p(.|long without i)), nats; None where no rule left tokens out."""


@dataclass(frozen=True, eq=False)
class OfRule:
    """What a rule chose for every target."""

    own: Chosen
    null: Chosen | None
    """Of the foreign text, at the same positions; None of a rule that needs no null."""
    k_star_T: list[int | None]
    """The least studied k that recovers most of the gain; None where there is no gain, or none does."""
    is_censored_T: np.ndarray
    """bool: none does."""
    expected: tuple[list[int | None], np.ndarray]
    """Both by the divergence: of the gain that is expected before the target is seen."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """What is measured of every target, nats."""

    long_losses_T: np.ndarray
    short: Measured
    foreign: Measured
    """With the foreign text's far context in the place of the own one."""
    of_rule: Mapping[str, OfRule]


def measure(
    model: CausalLM,
    batching: Batching,
    token_ids_L: np.ndarray,
    foreign_ids_L: np.ndarray,
    part: Part,
    asked: Asked,
) -> Measurements:
    """Measure every target of a part of a text.

    Args:
        token_ids_L, foreign_ids_L: the part's tokens, and as many of another text: int64.

    Raises:
        NotFiniteLossError: the model gives what is no number.
    """
    measurement = Measurement(model, part.lengths, batching, seed=(asked.seed,))
    contexts = far_contexts(measurement, token_ids_L, foreign_ids_L)
    own, foreign = contexts[OWN], contexts[OTHER_DOCUMENT]
    chosen = {rule: selected_positions(own, rule, part.ks[-1], (asked.seed,)) for rule in asked.rules}
    null = {
        rule: selected_positions(foreign, rule, part.ks[-1], (asked.seed,))
        for rule in asked.rules
        if RULES[rule].needs_null
    }
    of_own, of_null = _chosen(own, chosen, part.ks), _chosen(foreign, null, part.ks)
    return Measurements(
        own.long_losses_T,
        own.short,
        measured_in_foreign_context(model, token_ids_L, foreign_ids_L, part.lengths, own.predictions),
        {
            rule: OfRule(chosen_own, of_null.get(rule), *_k_stars(own, chosen_own.sparse_TJ, part.ks, asked))
            for rule, chosen_own in of_own.items()
        },
    )


def _chosen(
    context: FarContext, positions_of_rule: Mapping[str, np.ndarray], ks: Sequence[int]
) -> dict[str, Chosen]:
    sparse = sparse_contexts(context, positions_of_rule, dict.fromkeys(positions_of_rule, ks))
    # Told by whatever pass a rule has asked for; no pass is run to tell more.
    is_left_out = context.every_influence_TF is not None
    influence_TF = context.every_influence_TF
    divergence_TF = context.divergence_TF if is_left_out else None

    def of_chosen(values_TF: np.ndarray | None, positions_TK: np.ndarray) -> np.ndarray | None:
        return None if values_TF is None else np.take_along_axis(values_TF, positions_TK, axis=1)

    return {
        rule: Chosen(
            positions_TK,
            sparse[rule],
            of_chosen(influence_TF, positions_TK),
            of_chosen(divergence_TF, positions_TK),
        )
        for rule, positions_TK in positions_of_rule.items()
    }


def _k_stars(
    own: FarContext, sparse_TJ: Measured, ks: Sequence[int], asked: Asked
) -> tuple[list[int | None], np.ndarray, tuple[list[int | None], np.ndarray]]:
    """k* and whether it is censored by the loss, and the same by the divergence."""

    def k_star(gains_T: np.ndarray, recovered_TJ: np.ndarray) -> tuple[list[int | None], np.ndarray]:
        return dependency_sparsity(
            gains_T,
            recovered_TJ,
            np.array(ks),
            recovery_fraction=asked.recovery_fraction,
            minimum_gain=asked.minimum_gain,
        )

    short = own.short
    by_loss = k_star(short.losses - own.long_losses_T, short.losses[:, None] - sparse_TJ.losses)
    by_divergence = k_star(short.divergences, short.divergences[:, None] - sparse_TJ.divergences)
    return *by_loss, by_divergence


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

        measurements = measure(WatchedLM(model, advance), batching, *ids, part, asked)  # type: ignore[arg-type]
        bar.update(100 - bar.n)
    return measurements


def planned_work(model: CausalLM, batching: Batching, part: Part, asked: Asked) -> Work:
    """What `measure` will ask of the model: the same run, with one that computes nothing."""
    total = Work()

    def add(work: Work) -> None:
        nonlocal total
        total += work

    nothing_L = np.zeros(part.lengths.long_context_length, dtype=np.int64)
    measure(WatchedLM(UncomputedLM(model), add), replace(batching), nothing_L, nothing_L, part, asked)  # type: ignore[arg-type]
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


def explorer_page(explanation: Explanation, name: str) -> str:
    """The page's HTML.

    Args:
        name: of the text, as it is shown.
    """
    asked, part = explanation.asked, explanation.part
    record = _record(explanation, name)
    header: dict[str, Any] = {
        "results": f"{name}, by {explanation.model_name} in {explanation.dtype}",
        "models": [explanation.model_name], "rules": list(explanation.measurements.of_rule),
        "k": list(part.ks), "intervention": "remove",
        "short_context_length": part.lengths.short_context_length,
        "long_context_length": part.lengths.long_context_length,
        "targets_per_chunk": part.lengths.targets_per_chunk,
        "recovery_fraction": asked.recovery_fraction, "minimum_gain": asked.minimum_gain,
        "unit_nats": NATS, "left_out": _left_out(explanation),
        "null_pieces": _null_pieces(explanation),
    }  # fmt: skip
    return page_of(header, [(record, to_json(record))])


def in_units(nats: Sequence[float]) -> list[int | None]:
    """Whole numbers of NATS."""
    return [None if value != value else round(value / NATS) for value in nats]


def _record(explanation: Explanation, name: str) -> Record:
    part, measured = explanation.part, explanation.measurements
    of_model = {
        "short": in_units(measured.short.losses.tolist()),
        "long": in_units(measured.long_losses_T.tolist()),
        "expected": in_units(measured.short.divergences.tolist()),
        "specific": in_units(explanation.specific_gains_T.tolist()),
        "rules": {rule: _of_rule(explanation, of) for rule, of in measured.of_rule.items()},
    }
    chunk = {
        "start": part.first_token, "pieces": explanation.pieces_L, "targets": part.lengths.targets_T.tolist(),
        "models": {explanation.model_name: of_model},
        "null": {"id": "the foreign text", "pieces": explanation.foreign_pieces_L},
    }  # fmt: skip
    return {"id": name, "num_tokens": len(explanation.text.token_ids_N), "chunks": [chunk]}


def _of_rule(explanation: Explanation, of_rule: OfRule) -> Record:
    by_criterion = {"loss": (of_rule.k_star_T, of_rule.is_censored_T), "divergence": of_rule.expected}
    k_star = {
        criterion: ["censored" if is_censored else k for k, is_censored in zip(*values, strict=True)]
        for criterion, values in by_criterion.items()
    }
    record: Record = {"k_star": k_star, "own": _chosen_of_page(explanation, of_rule.own)}
    if of_rule.null is not None:
        tokens_TK = explanation.foreign.token_ids_N[of_rule.null.positions_TK]
        record["other_document"] = _chosen_of_page(explanation, of_rule.null) | {"token": tokens_TK.tolist()}
    return record


def _chosen_of_page(explanation: Explanation, chosen: Chosen) -> Record:
    distances_TK = explanation.part.lengths.targets_T[:, None] - chosen.positions_TK
    nothing_TK = np.full(distances_TK.shape, np.nan)
    influence_TK = nothing_TK if chosen.influence_TK is None else chosen.influence_TK
    record: Record = {
        "loss": _rows(chosen.sparse_TJ.losses),
        "kl": _rows(chosen.sparse_TJ.divergences),
        "distance": distances_TK.tolist(),
        "influence": _rows(influence_TK),
    }
    if chosen.divergence_TK is not None:
        record["moved"] = _rows(chosen.divergence_TK)
    return record


def _rows(values_TK: np.ndarray) -> list[list[int | None]]:
    return [in_units(values_K) for values_K in values_TK.tolist()]


def _null_pieces(explanation: Explanation) -> dict[int, str]:
    """The text of every foreign token that a null chose, by its ID."""
    nulls = [of.null for of in explanation.measurements.of_rule.values() if of.null is not None]
    places = {place for null in nulls for place in null.positions_TK.ravel().tolist()}
    pieces = explanation.foreign_pieces_L
    return {int(explanation.foreign.token_ids_N[place]): pieces[place] for place in sorted(places)}


def _left_out(explanation: Explanation) -> list[str]:
    part, lengths = explanation.part, explanation.part.lengths
    left_out = []
    if part.first_token:
        left_out.append(f"The first {part.first_token:,} tokens of the text, which are not measured.")
    left_out.append(
        f"Predictions of the first {lengths.first_target:,} tokens shown: before their short context are"
        f" fewer than {part.ks[-1]} tokens, or they were not asked for (--targets)."
    )
    left_out.append("The influence of far tokens that no rule selected.")
    if any(of.null is None for of in explanation.measurements.of_rule.values()):
        left_out.append(
            "The null of rules that fit neither the answer nor the prediction: they are told by what they"
            " recover themselves."
        )
    return left_out


NUM_NAMED = 10
"""Targets whose sources are named: those that gain most."""
_MOST_SOURCES = 4
_JOINERS = "\n\t\u200c\u200d"
"""Not printable, and harmless: without the last two, emoji and Arabic and Indic words would fall apart."""
_LEVELS_NATS = (0.1, 0.5, 1.0, 2.0)
_COLOURS = (153, 117, 75, 33)
"""Of the 256 that terminals have: blues, darker for each level."""
_INK, _PLAIN = "\x1b[38;5;16m", "\x1b[0m"


def told(explanation: Explanation, *, is_coloured: bool) -> str:
    """The text, a legend, and a table of the targets that gain most for each rule."""
    parts = [_text(explanation, is_coloured), _legend(explanation, is_coloured), _totals(explanation)]
    parts += [_sources(explanation, rule) for rule in explanation.measurements.of_rule]
    return "\n".join(parts)


def _text(explanation: Explanation, is_coloured: bool) -> str:
    gains = dict(zip(explanation.part.lengths.targets_T.tolist(), explanation.gains_T.tolist(), strict=True))
    shown = [
        _marked(_harmless(piece), gains.get(place, 0.0), is_coloured)
        for place, piece in enumerate(explanation.pieces_L)
    ]
    return "".join(shown).rstrip("\n") + "\n"


def _marked(piece: str, gain: float, is_coloured: bool) -> str:
    """A token, its level shown by a colour, or without colours by brackets."""
    level = int(np.searchsorted(_LEVELS_NATS, gain, side="right"))
    if not level or not piece:
        return piece
    word = piece.lstrip(" ") or piece
    blanks = piece[: len(piece) - len(word)]
    if not is_coloured:
        return f"{blanks}[{word}]" if level > 1 else piece
    return f"{blanks}\x1b[48;5;{_COLOURS[level - 1]}m{_INK}{word}{_PLAIN}"


def _harmless(text: str) -> str:
    return "".join(char if char in _JOINERS else printable(char) for char in text)


def _legend(explanation: Explanation, is_coloured: bool) -> str:
    if is_coloured:
        shades = " ".join(
            f"\x1b[48;5;{colour}m{_INK}{level:g}{_PLAIN}"
            for level, colour in zip(_LEVELS_NATS, _COLOURS, strict=True)
        )
        shown = f"Coloured: the loss falls by at least {shades} nats"
    else:
        shown = f"In [brackets]: the loss falls by at least {_LEVELS_NATS[1]:g} nats"
    short = explanation.part.lengths.short_context_length
    return f"{shown} when everything before a token is seen, and not only the {short} tokens before it.\n"


def _totals(explanation: Explanation) -> str:
    """Means over all targets: a target picked for its gain is to be seen as picked."""
    measured, gains_T = explanation.measurements, explanation.gains_T
    lines = [
        f"All {len(gains_T)} targets: the far context gains {gains_T.mean():.3f} nats on average (expected"
        f" {measured.short.divergences.mean():.3f}), of which"
        f" {explanation.specific_gains_T.mean():.3f} only this text gives and no foreign one.\n"
    ]
    lines += [_recovered(explanation, rule, of) for rule, of in measured.of_rule.items()]
    return "".join(lines)


def _recovered(explanation: Explanation, rule: str, of_rule: OfRule) -> str:
    """What the largest studied k recovers, as sums: by the prediction, and by what came."""
    measured, k = explanation.measurements, explanation.part.ks[-1]
    expected = 1 - of_rule.own.sparse_TJ.divergences[:, -1].sum() / measured.short.divergences.sum()
    short_sum = measured.short.losses.sum()
    recovered = short_sum - of_rule.own.sparse_TJ.losses[:, -1].sum()
    line = (
        f"{k} far tokens by {rule} bring back {expected:.0%} of the expected gain, and {recovered:.1f} of"
        f" {explanation.gains_T.sum():.1f} nats"
    )
    if of_rule.null is not None:
        of_null = short_sum - of_rule.null.sparse_TJ.losses[:, -1].sum()
        line += f"; {k} of a foreign text, chosen alike, {of_null:.1f}"
    return line + ".\n"


def _sources(explanation: Explanation, rule: str) -> str:
    of_rule = explanation.measurements.of_rule[rule]
    picked = [
        target
        for target in np.argsort(-explanation.gains_T, kind="stable")[:NUM_NAMED].tolist()
        if explanation.gains_T[target] >= explanation.asked.minimum_gain
    ]
    if not picked:
        return f"No target gains {explanation.asked.minimum_gain:g} nats from the far context.\n"
    rows = [
        [
            int(explanation.targets_T[target]),
            _quoted(explanation.pieces_L[explanation.part.lengths.targets_T[target]]),
            f"{explanation.gains_T[target]:+.2f}",
            f"{explanation.measurements.short.divergences[target]:.2f}",
            f"{explanation.specific_gains_T[target]:+.2f}",
            _k_star(of_rule, target, explanation.part.ks[-1]),
            ", ".join(_named_sources(explanation, of_rule, target)),
        ]
        for target in picked
    ]
    names = ["position", "token", "gain", "expected", "specific", "k*", "sources, and how many tokens before"]
    heading = f"The {len(picked)} targets that gain most, which their answer picked; sources by {rule}:\n"
    return heading + as_table(names, rows, widest_cell=None)


def _named_sources(explanation: Explanation, of_rule: OfRule, target: int) -> Iterator[str]:
    """The k* tokens that suffice, or the first few where no studied k does."""
    place = int(explanation.part.lengths.targets_T[target])
    num_shown = min(of_rule.k_star_T[target] or _MOST_SOURCES, _MOST_SOURCES)
    for source in of_rule.own.positions_TK[target, :num_shown].tolist():
        yield f"{_quoted(explanation.pieces_L[source])} {place - source}"


def _k_star(of_rule: OfRule, target: int, largest_k: int) -> str:
    k_star = of_rule.k_star_T[target]
    if k_star is not None:
        return str(k_star)
    return f">{largest_k}" if of_rule.is_censored_T[target] else "-"


def _quoted(piece: str) -> str:
    if not piece:
        return "part of a character"
    word = piece.strip(" ")
    return f"“{printable(word)}”" if word else f"{len(piece)} blanks" if len(piece) > 1 else "a blank"
