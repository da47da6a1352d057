"""The four answers that `summary.py` prints: a sentence each, of results, or of what they lack for it.

Only numbers that mean what they say: what k tokens are worth is told by the measure that is fooled least, of
those that the results have (`PREFERRED_RULES`), beyond its null where it needs one.

Print the closing table of a results folder: what the far context is worth, and how few tokens carry it.

python analysis/summary.py --results runs/demo/results --figures runs/demo/figures

With --rule NAME also what k tokens of that selection rule recover, beside the rule's null. The page is kept
in the folder of figures, and printed again where nothing has changed: results, code, versions of libraries.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.gap.scale import compared_models
from analysis.gap.slopes import gap_targets, slope_with_gain
from analysis.gap.sparsity import BEYOND_NULL, sparsity_measures
from analysis.losses.token_worth import is_clear_gain, nearest_equivalents, number_in_words, token_effects
from analysis.read import (
    PREFERRED_RULES,
    asked_ks,
    interval_over_documents,
    needs_null,
    read_sparse_losses,
    read_sparsity,
)
from pipeline.cli import InputError, folder_path, stage_parser, unknown_name
from pipeline.measuring.rules import BACKGROUND, CONTROLS, RULES
from pipeline.results.files import add_partial_flag, allow_partial, exported_name, partial_note, write_json
from pipeline.results.read import artefacts_in, read_artefact, read_settings
from pipeline.results.schemas import LOSS, OTHER_DOCUMENT, OWN
from pipeline.results.statistics import Interval
from pipeline.results.table import as_table

_UNTOLD = "Whether short-trained models lose more where more tokens are needed cannot be told:"
_HOW_TO_CHOOSE = "run influential_tokens with its own choice of rules and intervention"


@dataclass(frozen=True)
class Chosen:
    """The measure that the answers are told by."""

    model: str
    rule: str
    settings: Mapping[str, Any]

    @property
    def is_in_background(self) -> bool:
        """Whether tokens were put into another document's far context."""
        return self.settings.get("intervention") == BACKGROUND


def chosen_measure(results: Path) -> Chosen | None:
    """The least fooled rule of the results, of the first model that has it; None where no tokens were chosen.

    Rules that see the answer come last: of these only the excess over the null is told too.
    """
    if "sparse_context_losses" not in artefacts_in(results):
        return None
    present = read_artefact(results, "sparse_context_losses", ["rule"]).drop_duplicates()
    settings = read_settings(results, "influential_tokens")
    others = [rule for rule in (*RULES, *present["rule"]) if rule not in CONTROLS]
    for rule in dict.fromkeys([*PREFERRED_RULES, *others]):
        for model in present.loc[present["rule"] == rule, "model"]:
            return Chosen(str(model), rule, settings.get(model, {}))
    return None


def answers(results: Path) -> Iterator[str]:
    """Four sentences.

    Raises:
        InputError: no loss differences.
    """
    losses = read_artefact(results, "loss_differences")
    chosen = chosen_measure(results)
    model = _told_model(losses, chosen)
    targets = losses[losses["model"] == model]
    yield worth_of_far_context(targets, model)
    yield own_part(targets, model)
    if chosen is None:
        yield f"How many tokens carry it was not measured: {_HOW_TO_CHOOSE}."
    else:
        yield carried_by(results, chosen)
    yield from short_models_answers(results, losses, chosen)


def _told_model(losses: pd.DataFrame, chosen: Chosen | None) -> str:
    """The model that tokens were chosen with; else the one that gains most."""
    if chosen is not None and chosen.model in set(losses["model"]):
        return chosen.model
    return str(losses.groupby("model")["loss_difference"].mean().idxmax())


def worth_of_far_context(targets: pd.DataFrame, model: str) -> str:
    """What the far context is worth, actually and by the model's own expectation.

    Args:
        targets: rows of loss_differences, one model.
        model: its name.
    """
    actual = interval_over_documents(targets["document_id"], targets["loss_difference"])
    said = f"To {model} the far context is worth {actual} nats a token"
    expected = _told(targets, "short_context_divergence")
    if expected is None:
        return f"{said}."
    return f"{said}; by its own predictions, before it sees the token, {expected}."


def own_part(targets: pd.DataFrame, model: str) -> str:
    """How much of that only this document's far context gives.

    Args:
        targets: rows of loss_differences, one model.
        model: its name.
    """
    specific = _told(targets, "specific_gain")
    if specific is None:
        return "How much of it is this document's own was not measured: run loss_differences again."
    documents, gains = targets["document_id"], targets["loss_difference"]
    said = f"With another document's far context in its place {model} loses {specific} nats a token"
    if not is_clear_gain(interval_over_documents(documents, gains)):
        return f"{said}; what the far context is worth is too unclear for a share of it."
    share = interval_over_documents(documents, targets["specific_gain"], gains)
    return f"{said}: so much, {share} of the whole, is this document's own."


def _told(targets: pd.DataFrame, column: str) -> Interval | None:
    """The mean of a column that earlier results lack."""
    if column not in targets or targets[column].isna().all():
        return None
    return interval_over_documents(targets["document_id"], targets[column])


def effects_of(results: Path, chosen: Chosen) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`token_effects` of the chosen rule by the loss at each k asked for; `nearest_equivalents` of them."""
    only = {"model": [chosen.model], "rule": [chosen.rule, "nearest"]}
    effects = token_effects(read_sparse_losses(results, only=only, every_k=True))
    effects = effects[effects["criterion"] == LOSS]
    equivalents = nearest_equivalents(effects)
    asked = asked_ks(results).get(chosen.model)
    of_rule = effects[effects["rule"] == chosen.rule]
    return of_rule[of_rule["k"].isin(asked)] if asked else of_rule, equivalents


def carried_by(results: Path, chosen: Chosen) -> str:
    """How much of the gain the largest asked number of tokens carries, and how many of the nearest do."""
    effects, equivalents = effects_of(results, chosen)
    if effects.empty:
        return f"How many tokens carry it cannot be told: {chosen.rule} was measured without its null."
    row = effects.sort_values("k").to_dict("records")[-1]
    gain, effect, share = (_interval(row, name) for name in ("gain", "effect", "share"))
    beyond = " beyond what the same search finds in another document" if needs_null(chosen.rule) else ""
    where = (
        "put into another document's far context" if chosen.is_in_background else "added to the short context"
    )
    of_gain = "there is no clear gain"
    if is_clear_gain(gain):
        of_gain = f"{share} of the {gain.estimate:.3f} there are to gain"
    said = f"{row['k']} far tokens ({chosen.rule}), {where}, give {effect} nats{beyond}: {of_gain}"
    if not beyond:
        said += f" (another document's tokens, chosen alike, give {_interval(row, 'null_recovered')})"
    if not effect.low > 0:
        return f"{said}; that is not clearly more than nothing."
    if equivalents.empty:
        return f"{said}."
    (nearest,) = equivalents[equivalents["k"] == row["k"]].to_dict("records")
    return f"{said}; {number_in_words(nearest)} of the nearest tokens do as much."


def short_models_answers(results: Path, losses: pd.DataFrame, chosen: Chosen | None) -> Iterator[str]:
    """Whether short-trained models lose more where more tokens are needed: a sentence each, or what lacks.

    The gain is held constant, as who gains much from the far context has much to lose; and as single losses
    are noisy, k* and the gap come from two long-trained seeds.
    """
    if chosen is None or "dependency_sparsity" not in artefacts_in(results):
        yield f"{_UNTOLD} how many tokens each prediction needs was not measured."
        return
    try:
        compared = compared_models([results])
    except InputError:
        yield f"{_UNTOLD} the results do not say how the models were trained."
        return
    group = next((group for group in compared if chosen.model in group.long_models), None)
    if group is None or not group.short_models:
        yield f"{_UNTOLD} it needs models trained at a short context beside {chosen.model}."
        return
    others = [model for model in group.long_models if model != chosen.model]
    if not others:
        yield f"{_UNTOLD} a second long-trained seed is needed, or one seed's luck would tie both together."
        return
    measured, largest_k = _measured_sparsity(results, chosen)
    targets = gap_targets(
        losses,
        short_models=group.short_models,
        reference_model=others[-1],
        difficulty_model=others[-1],
        gain_model=chosen.model,
        token_counts_V=None,
    )
    for model, of_model in targets.groupby("model", sort=False):
        yield _gap_sentence(str(model), others[-1], of_model, slope_with_gain(of_model, measured, largest_k))


def _measured_sparsity(results: Path, chosen: Chosen) -> tuple[pd.DataFrame, int]:
    """k* of each target by the chosen measure, and the largest k of those asked for."""
    only = {"model": [chosen.model], "rule": [chosen.rule]}
    sparse = read_sparse_losses(results, only=only)
    measured = sparsity_measures(read_sparsity(results, only=only), sparse, chosen.settings)
    measure = chosen.rule + (BEYOND_NULL if needs_null(chosen.rule) else "")
    return measured[measured["measure"] == measure], int(sparse["k"].max())


def _gap_sentence(model: str, reference: str, targets: pd.DataFrame, slope: Interval) -> str:
    gap = interval_over_documents(targets["document_id"], targets["generalization_gap"])
    said = f"Under the long context {model} loses {gap} nats a token more than {reference}"
    if pd.isna(slope.low):
        return f"{said}; too few predictions tell whether more where more tokens are needed."
    clear = "no clear change"
    if not slope.low <= 0 <= slope.high:
        clear = "more where more are needed" if slope.low > 0 else "less where more are needed"
    return (
        f"{said}; with every doubling of the tokens that a prediction needs this changes by {slope} nats"
        f" where as much is to gain: {clear}."
    )


def _interval(row: Mapping[Hashable, Any], name: str) -> Interval:
    return Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])


if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

Row = Mapping[Hashable, Any]  # of a table of analysis.losses.losses or analysis.losses.token_worth
_ABSENT = "-"
_NO_GAIN = "no gain"
_PAGE_WIDTH = 110


def _interval_text(row: Row | None, column: str) -> str:
    if row is None or row[column] != row[column]:  # NaN: not measured
        return _ABSENT
    return str(Interval(row[column], row[f"{column}_low"], row[f"{column}_high"]))


def context_lengths(results: Path, model: str) -> str:
    """'short / long' tokens of the contexts that a model's loss differences were measured with."""
    settings = read_settings(results, "loss_differences").get(model, {})
    lengths = (settings.get(name, _ABSENT) for name in ("short_context_length", "long_context_length"))
    return " / ".join(map(str, lengths))


def models_table(results: Path) -> str:
    """A row a model: contexts, sample size, mean losses, and what the far context is worth, with intervals.

    That is the mean loss difference; the mean divergence of the short context, which is what the model
    expects of it; and what is lost where another document's far context stands in its place.
    """
    from analysis.losses.losses import summarize_models  # late, for a --help at once

    summary = summarize_models(read_artefact(results, "loss_differences"))
    rows = [
        [
            row["model"], context_lengths(results, row["model"]),
            f"{row['num_targets']:,}", f"{row['num_documents']:,}",
            f"{row['short_context_loss']:.3f}", f"{row['long_context_loss']:.3f}",
            *(_interval_text(row, name) for name in ("loss_difference", "expected_gain", "specific_gain")),
        ]
        for row in summary.to_dict("records")
    ]  # fmt: skip
    header = [
        "model", "context short / long", "targets", "documents", "short loss", "long loss",
        "short - long [95 %]", "expected [95 %]", "its own [95 %]",
    ]  # fmt: skip
    return as_table(header, rows, widest_cell=None, num_left_columns=1)


def recovered_table(results: Path, rule: str) -> str:
    """A row a model and k: recovered fraction beside its null's, and the excess in nats.

    Raises:
        InputError: no results of influential tokens, or none of this rule.
    """
    from analysis.losses.token_worth import excess_over_null, recovered_losses  # late, for a --help at once
    from analysis.read import read_sparse_losses

    losses = read_sparse_losses(results)
    if rule not in set(losses["rule"]):
        raise unknown_name("rule", rule, losses["rule"].unique())
    losses = losses[losses["rule"] == rule]
    recovered = {
        (row["far_context"], row["model"], row["k"]): row
        for row in recovered_losses(losses).to_dict("records")
    }
    excess = {(row["model"], row["k"]): row for row in excess_over_null(losses).to_dict("records")}
    rows = []
    for far_context, model, k in recovered:
        if far_context == OWN:
            own, null = recovered[OWN, model, k], recovered.get((OTHER_DOCUMENT, model, k))
            beyond = excess.get((model, k))
            in_nats = [
                _interval_text(own, "recovered_loss"),
                _interval_text(beyond, "excess_loss"),
            ]
            rows.append([model, str(k), _fraction(own), _fraction(null), *in_nats])
    rows += [[model, *[_ABSENT] * 5] for model in _models_without(results, losses)]
    header = ["model", "k", "recovered fraction", "its null", "recovered (nats)", "beyond the null (nats)"]
    return as_table(header, rows, widest_cell=None, num_left_columns=1)


def _fraction(row: Row | None) -> str:
    if row is not None and not row["is_gain_clear"]:
        return _NO_GAIN
    return _interval_text(row, "recovered_fraction")


def _models_without(results: Path, losses: "pd.DataFrame") -> list[str]:
    models = read_artefact(results, "loss_differences", ["document_id"])["model"].unique()
    return sorted(set(models) - set(losses["model"]))


def _files_of(results: Path, artefact: str) -> Path:
    """The files that hold an artefact, as a pattern."""
    exported = results / exported_name(artefact)
    return exported if exported.exists() else results / artefact / "model=*" / "*.parquet"


_NOTES = f"""\
Losses are in nats, means over targets; [ ] is the 95 % interval over documents. "expected": by the model's
own prediction, before it sees the token. "its own": what is lost where another document's far context stands
in its place. "{_ABSENT}": not measured.
"""
_NOTES_ON_RECOVERY = f"""\
"its null" makes the same choice among another document's tokens: what it recovers is owed to the choice, so
the effect is what lies beyond it. "{_NO_GAIN}": the interval of the mean gain is not above 0, and a fraction
of nothing would mean nothing.
"""


def closing_text(results: Path, figures: Path, rule: str | None = None) -> str:
    """The whole page: the table of losses, the answers, and where figures and data lie.

    Args:
        results, figures: their folders.
        rule: of which what k tokens recover is shown too; None: of none.
    """
    artefacts = artefacts_in(results)
    losses, told = models_table(results), [*answers(results)]
    recovered = [] if rule is None else _recovered_text(results, rule)
    note = partial_note()
    partial = f" ({note})" if note else ""
    parquet = [f"  {_files_of(results, artefact)}" for artefact in artefacts]
    pngs = sorted(figures.glob("*.png"))
    drawn = [f"  {path}" for path in pngs] or [f"  none in {figures}"]
    beside = " (a PDF beside each)" if all(path.with_suffix(".pdf").exists() for path in pngs) else ""
    return "\n".join(
        [
            f"What the long context is worth{partial}", losses, _NOTES,
            f"In words{partial}", *(_wrapped(sentence) for sentence in told), "",
            *recovered,
            f"Figures{beside}", *drawn, "",
            "Data (pipeline/RESULTS.md says what the columns mean)", *parquet, "",
            "To ask more of it", "  . .venv/bin/activate", f"  sparsity query --results {results}", "",
        ]
    )  # fmt: skip


def _recovered_text(results: Path, rule: str) -> list[str]:
    if "sparse_context_losses" not in artefacts_in(results):
        return ["not measured: no influential tokens", ""]
    table = recovered_table(results, rule)
    note = f" ({partial_note()})" if partial_note() else ""
    return [f"What k tokens of it recover (rule {rule}){note}", table, _NOTES_ON_RECOVERY]


def _wrapped(sentence: str) -> str:
    """An answer as an item of a list, in lines of a page's width."""
    return textwrap.fill(
        sentence,
        _PAGE_WIDTH,
        initial_indent="  - ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def page(results: Path, figures: Path, rule: str | None = None, *, is_partial_allowed: bool = False) -> str:
    """`closing_text`, or what it was the last time, where nothing has changed that it was made from.

    It is kept in the folder of figures, if there is one, as the notebooks keep theirs: a second `make demo`
    ends in an instant.
    """
    from analysis.notebooks import fingerprint  # late, for a --help at once

    drawn = sorted(path.name for path in figures.glob("*.p[nd][gf]"))
    decides = {
        "paths": [str(results), str(figures)],
        "drawn": drawn,
        "rule": rule,
        "is_partial_allowed": is_partial_allowed,
    }
    made_from = fingerprint(results, Path(__file__), decides, figures)
    path = figures / ".summary.json"
    kept = _kept(path)
    if kept.get("made_from") == made_from:
        return str(kept["text"])
    text = closing_text(results, figures, rule)
    if figures.is_dir():
        with suppress(OSError):  # a folder that cannot be written to: the page is made anew each time
            write_json(path, {"made_from": made_from, "text": text})
    return text


def _kept(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or damaged
        return {}
    return kept if isinstance(kept, dict) and "text" in kept else {}


def main(arguments: argparse.Namespace) -> None:
    """Print the page."""
    allow_partial(arguments.allow_partial)
    figures = arguments.figures or arguments.results.parent / "figures"
    sys.stdout.write(
        page(arguments.results, figures, arguments.rule, is_partial_allowed=arguments.allow_partial)
    )


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--results", type=folder_path, required=True, help="a results folder")
    add("--figures", type=folder_path, help="the folder of figures; beside the results where not given")
    add("--rule", help="show what k tokens of this selection rule recover too, beside its null")
    add_partial_flag(program)
    return program
