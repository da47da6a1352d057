"""One text through the code that measures documents; its tables as a frame, as the explorer's page, in words.

The text's last tokens are one chunk, and as many tokens of a foreign text its null.

Shapes: N tokens of the text, L measured tokens, T targets, K largest k, J studied values of k.
"""

import argparse
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cli import InputError, logger
from pipeline.explorer_page.writing import NATS, Record, chunk_record, grouped, page_of, to_json
from pipeline.measuring.far_context import FarContext
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.given import GivenModel, counted
from pipeline.measuring.rules import find_rule
from pipeline.measuring.sparsity import Request, compared_losses, measure_chunk
from pipeline.measuring.stage import LoadedModel, failures_in_words
from pipeline.models.leading import num_positions_of
from pipeline.results.schemas import LOSS, OTHER_DOCUMENT, OWN
from pipeline.results.table import as_table, printable
from pipeline.text.chunks import Chunk, without_bos
from pipeline.text.sources import first_passages
from pipeline.text.tokenizer import DocumentTokenizer, Text, TokenizedText, tokenized_text

_CHUNK = "", 0
"""Document ID and chunk index of a text in its tables."""
NUM_NAMED, _MOST_SOURCES = 10, 4
"""Targets whose sources are named, those that gain most, and sources named of each."""
_JOINERS = "\n\t\u200c\u200d"
"""Not printable, and harmless: without the last two, emoji and Arabic and Indic words would fall apart."""
_LEVELS_NATS, _COLOURS = (0.1, 0.5, 1.0, 2.0), (153, 117, 75, 33)
"""Of the 256 colours that terminals have: blues, darker for each level."""


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """A text, and what was measured of it: a frame, a page, and in words by `print`."""

    model: str
    dtype: str
    text: TokenizedText
    """Without BOS, which belongs to the model."""
    foreign: TokenizedText
    """Stands in for the far context; without BOS."""
    first_token: int
    """Place in the text's tokens of the first that is measured."""
    request: Request
    tables: Mapping[str, pd.DataFrame]
    """Artefact -> its rows, places counted from `first_token`. The divergence of leaving a selected token out
    stands in influential_tokens, NaN where no rule left tokens out."""

    @cached_property
    def html(self) -> str:
        """The explorer's page of the text."""
        return explorer_page(self, "the text")

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        page = html.escape(self.html)
        return f'<iframe srcdoc="{page}" width="100%" height="800" frameborder="0"></iframe>'

    def __str__(self) -> str:
        return in_words(self, is_coloured=False)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row a target and rule; `sparsity_length.explain` lists the columns."""
        return pd.concat(map(self._frame_of, self.request.numbers_of_rule), ignore_index=True)

    def _frame_of(self, rule: str) -> pd.DataFrame:
        losses, k_stars = self.tables["loss_differences"], self.tables["dependency_sparsity"]
        k_stars = k_stars[(k_stars["rule"] == rule) & (k_stars["criterion"] == LOSS)]
        targets_T, pieces = self.first_token + losses["target_position"].to_numpy(), self.text.pieces

        def lists(artefact: str, column: str, far_context: str = OWN) -> list[Any]:
            """Of each target a column's values, of all ranks or k; None if not measured."""
            rows = self.tables[artefact]
            values = rows.loc[(rows["rule"] == rule) & (rows["far_context"] == far_context), column]
            if values.isna().all():
                return [None] * len(targets_T)
            return values.to_numpy().reshape(len(targets_T), -1).tolist()

        chosen = lists("influential_tokens", "context_position")
        sources = [[self.first_token + place for place in places] for places in chosen]
        names = (
            "short_context_loss", "long_context_loss", "loss_difference", "short_context_divergence",
            "foreign_context_loss", "specific_gain",
        )  # fmt: skip
        starts_T, ends_T = self.text.bytes_N2[targets_T].T
        columns = {
            "position": targets_T, "byte_start": starts_T, "byte_end": ends_T,
            "token": [pieces[target] for target in targets_T],
            "token_id": self.text.token_ids_N[targets_T],
            **{name: losses[name] for name in names}, "rule": rule,
            "dependency_sparsity": k_stars["dependency_sparsity"].astype("Int64").array,
            "is_censored": k_stars["is_censored"].to_numpy(),
            "source_positions": sources,
            "source_tokens": [[pieces[place] for place in places] for places in sources],
            "source_influences": lists("influential_tokens", "influence"),
            "source_divergences": lists("influential_tokens", "divergence"),
            "k": lists("sparse_context_losses", "k"),
            "sparse_context_losses": lists("sparse_context_losses", "sparse_context_loss"),
            "sparse_context_divergences": lists("sparse_context_losses", "sparse_context_divergence"),
        }  # fmt: skip
        null = lists("sparse_context_losses", "sparse_context_loss", OTHER_DOCUMENT)
        return pd.DataFrame(columns | {"null_sparse_context_losses": null})


def explained(text: Text, arguments: argparse.Namespace) -> Explanation:
    """Explain a text, with a bar; `arguments` are of `pipeline.explain`, with foreign_text or None."""
    for rule in arguments.rules:
        find_rule(rule)  # an unknown one is refused before a model is loaded
    given = GivenModel(
        arguments.model, device=arguments.device, dtype=arguments.dtype, revision=arguments.revision,
        trust_remote_code=arguments.trust_remote_code,
    )  # fmt: skip
    tokenizer = given.tokenizer(
        arguments.tokenizer, bos=arguments.bos, special_tokens=arguments.special_tokens
    )
    bos_token_ids, tokenized = without_bos(tokenized_text(text, tokenizer))
    num_tokens = len(tokenized.token_ids_N)
    tokenizer.warn_of(tokenized.noted, num_tokens)
    num_positions = positions_left(given, bos_token_ids)
    lengths, ks = measured_lengths(arguments, num_tokens, num_positions)
    length = lengths.long_context_length
    foreign = foreign_text(arguments.foreign_text, length, tokenizer)
    chunk = Chunk(*_CHUNK, tokenized.token_ids_N[-length:], foreign.token_ids_N[None, :length])
    request = Request(
        lengths=lengths, largest_k=ks[-1], numbers_of_rule=dict.fromkeys(arguments.rules, ks),
        seed=arguments.seed, every_null=False, every_influence=False,
    )  # fmt: skip
    first_token = num_tokens - length
    texts = [tokenized.token_ids_N, foreign.token_ids_N]
    with given.ready(length, texts, tokenizer, bos_token_ids) as loaded:
        if length < num_tokens:
            why = ", the positions the model was made for (--long-context-length sets another number)"
            logger.warning(
                "the text has %d tokens, of which the last %d are measured%s",
                num_tokens, length, why if length == num_positions else "",
            )  # fmt: skip
        logger.info("%s: %d tokens, %d of them predicted", given.name, length, lengths.num_targets)
        with failures_in_words(given.name, length, first_token), counted([loaded], "explain"):
            contexts = request.far_contexts(loaded, chunk)
            tables = measured_tables(loaded, chunk, (), request, contexts)
            compared = pd.DataFrame(compared_losses(chunk, contexts[OWN])).assign(model=loaded.name)
        dtype = str(loaded.model.dtype).removeprefix("torch.")
    tables["loss_differences"] = compared
    return Explanation(given.name, dtype, tokenized, foreign, first_token, request, tables)


def positions_left(given: GivenModel, bos_token_ids: Sequence[int]) -> int | None:
    """The most tokens of a chunk behind BOS, as many as the model was made for; None where it doesn't say."""
    num_positions = given.num_positions
    return num_positions and num_positions - num_positions_of(0, len(bos_token_ids))


def measured_lengths(
    arguments: argparse.Namespace, num_tokens: int, num_positions: int | None
) -> tuple[ContextLengths, tuple[int, ...]]:
    """How many tokens at a text's end are measured, and the k studied; `num_positions` is the model's."""
    short = arguments.short_context_length
    if num_tokens < 2 * short:
        raise InputError(
            f"the text has {num_tokens} tokens, fewer than two short contexts of {short}: give a longer text,"
            f" or --short-context-length {num_tokens // 2} or less"
        )
    length = min(arguments.long_context_length or num_positions or num_tokens, num_tokens)
    most_far = length - 1 - short
    ks = tuple(k for k in sorted(set(arguments.k)) if k <= most_far)
    if not ks:
        raise InputError(
            f"{length} tokens leave the last one {max(most_far, 0)} far tokens beside a short context of"
            f" {short}, and --k asks for {min(arguments.k)} at least: choose a longer --long-context-length,"
            " a shorter --short-context-length or a smaller --k"
        )
    most_targets = length - short - ks[-1]
    if arguments.targets is not None and arguments.targets > most_targets:
        raise InputError(
            f"--targets {arguments.targets} is more than the {most_targets} tokens that have {ks[-1]} far"
            f" tokens before a short context of {short}; choose fewer, or all"
        )
    return ContextLengths(short, length, arguments.targets or most_targets), ks


def foreign_text(text: str | None, num_tokens: int, tokenizer: DocumentTokenizer) -> TokenizedText:
    """The foreign text, or English passages, of at least so many tokens; without BOS."""
    if text is not None:
        _, given = without_bos(tokenized_text(text, tokenizer))
        if len(given.token_ids_N) < num_tokens:
            raise InputError(
                f"the foreign text has {len(given.token_ids_N)} tokens, and {num_tokens} are measured; give a"
                " longer one, or a smaller --long-context-length"
            )
        return given
    num_characters = 4 * num_tokens  # about what a token of English has
    while True:
        passages = "\n\n".join(first_passages(num_characters))
        _, foreign = without_bos(tokenized_text(passages, tokenizer))
        if len(foreign.token_ids_N) >= num_tokens:
            return foreign
        if len(passages) < num_characters:
            raise InputError(f"{num_tokens} foreign tokens are more than come along; give a foreign text")
        num_characters *= 2


def measured_tables(
    chooser: LoadedModel, chunk: Chunk, judges: Sequence[LoadedModel], request: Request,
    contexts: Mapping[str, FarContext],
) -> dict[str, pd.DataFrame]:  # fmt: skip
    """`measure_chunk` as frames, and how leaving a selected token out moves the prediction (`Explanation`).

    `contexts` are the chooser's.
    """
    columns = measure_chunk([chooser], chunk, judges, request, contexts)
    tables = {name: pd.DataFrame(of).assign(model=chooser.name) for name, of in columns.items()}
    selected = tables["influential_tokens"]
    selected["divergence"] = np.nan
    for name, context in contexts.items():
        # Where a rule has left every token out; no pass is run to say more.
        if request.leaves_out(name, chunk.document_id):
            of_context = selected[selected["far_context"] == name]
            targets = of_context["target_position"] - chunk.start - request.lengths.first_target
            moved = context.divergence_TF[targets, of_context["context_position"] - chunk.start]
            selected.loc[of_context.index, "divergence"] = moved
    return tables


def explorer_page(explanation: Explanation, name: str) -> str:
    """The page's HTML; `name` is shown as the text's."""
    tables, request, lengths = explanation.tables, explanation.request, explanation.request.lengths
    rules, foreign_pieces = list(request.numbers_of_rule), explanation.foreign.pieces
    chunk = chunk_record(grouped(tables), _CHUNK, 0, [explanation.model], rules) | {
        "start": explanation.first_token,
        "pieces": explanation.text.pieces[explanation.first_token :],
        "null": {"id": "the foreign text", "pieces": foreign_pieces[: lengths.long_context_length]},
    }
    record: Record = {"id": name, "num_tokens": len(explanation.text.token_ids_N), "chunks": [chunk]}
    selected = tables["influential_tokens"]
    null = selected[selected["far_context"] == OTHER_DOCUMENT].sort_values("context_position")
    null = null[["context_token_id", "context_position"]]
    header: dict[str, Any] = {
        "results": f"{name}, by {explanation.model} in {explanation.dtype}",
        "models": [explanation.model], "rules": rules, "k": list(request.numbers_of_rule[rules[0]]),
        "intervention": "remove", "short_context_length": lengths.short_context_length,
        "long_context_length": lengths.long_context_length, "targets_per_chunk": lengths.targets_per_chunk,
        "recovery_fraction": request.recovery_fraction, "minimum_gain": request.minimum_gain,
        "unit_nats": NATS, "left_out": _left_out(explanation),
        "null_pieces": {token_id: foreign_pieces[place] for token_id, place in null.to_numpy().tolist()},
    }  # fmt: skip
    return page_of(header, [(record, to_json(record))])


def _left_out(explanation: Explanation) -> list[str]:
    first_token, request = explanation.first_token, explanation.request
    has_no_null = len(request.numbers_in(OTHER_DOCUMENT)) < len(request.numbers_of_rule)
    return [
        *[f"The first {first_token:,} tokens of the text, which are not measured."] * (first_token > 0),
        f"Predictions of the first {request.lengths.first_target:,} tokens shown: before their short context"
        f" are fewer than {request.largest_k} tokens, or they were not asked for (--targets).",
        "The influence of far tokens that no rule selected.",
        *["The null of rules that fit neither the answer nor the prediction."] * has_no_null,
    ]


def in_words(explanation: Explanation, *, is_coloured: bool) -> str:
    """The text, a legend, and a table of the targets that gain most for each rule.

    Nothing in a text is obeyed: escape sequences, and what turns the direction of writing, are shown
    as numbers.
    """
    losses, request = explanation.tables["loss_differences"], explanation.request
    gains = dict(zip(losses["target_position"], losses["loss_difference"], strict=True))
    shown = []
    for place, piece in enumerate(explanation.text.pieces[explanation.first_token :]):
        harmless = "".join(char if char in _JOINERS else printable(char) for char in piece)
        shown.append(_marked(harmless, gains.get(place, 0.0), is_coloured))
    legend = f"In [brackets]: the loss falls by at least {_LEVELS_NATS[1]:g} nats"
    if is_coloured:
        shades = " ".join(_marked(f"{level:g}", level, is_coloured) for level in _LEVELS_NATS)
        legend = f"Coloured: the loss falls by at least {shades} nats"
    # Means of all targets: one that is picked for its gain is to be seen as picked.
    gain, specific = losses["loss_difference"].mean(), losses["specific_gain"].mean()
    totals = f"All {len(losses)} targets: "
    if gain > 0:
        totals += f"the far context gains {gain:.3f} nats on average"
        totals += f" (expected {losses['short_context_divergence'].mean():.3f}); a foreign text in its place"
        totals += f" {'gains' if gain > specific else 'costs'} {abs(gain - specific):.3f} nats.\n"
    else:
        totals += "the model gains nothing from the far context; with it the loss is"
        totals += f" {-gain:.3f} nats higher on average.\n"
    of_rules = explanation.frame.groupby("rule", sort=False)
    parts = [
        "".join(shown).rstrip("\n") + "\n",
        f"{legend} when everything before a token is seen, and not only the"
        f" {request.lengths.short_context_length} tokens before it.\n",
        totals + "".join(_recovered(str(rule), rows, request.largest_k) for rule, rows in of_rules),
        *(_sources(str(rule), rows, request) for rule, rows in of_rules),
    ]
    return "\n".join(parts)


def _marked(piece: str, gain: float, is_coloured: bool) -> str:
    """A token, its level shown by a colour, or without colours by brackets."""
    level = int(np.searchsorted(_LEVELS_NATS, gain, side="right"))
    if not level or not piece:
        return piece
    word = piece.lstrip(" ") or piece
    blanks = piece[: len(piece) - len(word)]
    if not is_coloured:
        return f"{blanks}[{word}]" if level > 1 else piece
    return f"{blanks}\x1b[48;5;{_COLOURS[level - 1]}m\x1b[38;5;16m{word}\x1b[0m"


def _recovered(rule: str, rows: pd.DataFrame, k: int) -> str:
    """What the largest studied k recovers, as sums: by the prediction, and by what came if that gained."""
    names = ["sparse_context_divergences", "sparse_context_losses", "null_sparse_context_losses"]
    left = {name: sum(values[-1] for values in rows[name] if values) for name in names}
    short, gain = rows["short_context_loss"].sum(), rows["loss_difference"].sum()
    expected = rows["short_context_divergence"].sum()
    if expected <= 0:
        return f"The prediction does not change with the far context, so {rule} has nothing to bring back.\n"
    share = 1 - left["sparse_context_divergences"] / expected
    if gain <= 0:
        how_much = f"{share:.0%}" if share > 0 else "nothing"
        return f"{k} far tokens by {rule} bring back {how_much} of what it changes in the predictions.\n"
    recovered = short - left["sparse_context_losses"]
    line = f"{k} far tokens by {rule} bring back {share:.0%} of the expected gain, and"
    line += f" {recovered:.1f} of {gain:.1f} nats"
    if rows["null_sparse_context_losses"].notna().all():
        recovered = short - left["null_sparse_context_losses"]
        line += f"; {k} of a foreign text, chosen in the same way, {recovered:.1f}"
    return line + ".\n"


def _sources(rule: str, rows: pd.DataFrame, request: Request) -> str:
    picked = rows[rows["loss_difference"] >= request.minimum_gain]
    picked = picked.sort_values("loss_difference", ascending=False, kind="stable")[:NUM_NAMED]
    if picked.empty:
        return f"No target gains {request.minimum_gain:g} nats from the far context.\n"
    lines: list[list[object]] = []
    for row in picked.to_dict("records"):
        k_star = None if pd.isna(row["dependency_sparsity"]) else int(row["dependency_sparsity"])
        sources = zip(row["source_tokens"], row["source_positions"], strict=True)
        named = [f"{_quoted(token)} {row['position'] - place}" for token, place in sources]
        lines.append([
            row["position"], _quoted(row["token"]), f"{row['loss_difference']:+.2f}",
            f"{row['short_context_divergence']:.2f}", f"{row['specific_gain']:+.2f}",
            str(k_star or (f">{request.largest_k}" if row["is_censored"] else "-")),
            ", ".join(named[: min(k_star or _MOST_SOURCES, _MOST_SOURCES)]),
        ])  # fmt: skip
    names = ["position", "token", "gain", "expected", "specific", "k*", "sources, and how many tokens before"]
    targets = "target that gains" if len(lines) == 1 else f"{len(lines)} targets that gain"
    heading = f"The {targets} most, which their answer picked; sources by {rule}:\n"
    return heading + as_table(names, lines, widest_cell=None)


def _quoted(piece: str) -> str:
    if not piece:
        return "part of a character"
    word = piece.strip(" ")
    return f"“{printable(word)}”" if word else f"{len(piece)} blanks" if len(piece) > 1 else "a blank"
