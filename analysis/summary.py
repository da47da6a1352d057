"""Print the closing table of a results folder: what the far context is worth, and how few tokens carry it.

python analysis/summary.py --results runs/demo/results --figures runs/demo/figures

With --rule NAME also what k tokens of that selection rule recover, beside the rule's null. The page is kept
in the folder of figures, and printed again where nothing has changed: results, code, versions of libraries.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.start import start

    start(__file__)

import argparse
import json
import textwrap
from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pipeline.errors import unknown_name
from pipeline.results.bootstrap import Interval
from pipeline.results.files import write_json
from pipeline.results.folder import artefacts_in, read_artefact, read_settings
from pipeline.results.marks import exported_name
from pipeline.results.names import OTHER_DOCUMENT, OWN
from pipeline.results.partial import add_partial_flag, allow_partial, partial_note
from pipeline.results.terminal_table import as_table
from pipeline.stage import folder_path, stage_parser

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[Hashable, Any]  # of a table of analysis.mean_losses or analysis.recovered_gain
_ABSENT = "-"
_NO_GAIN = "no gain"
_PAGE_WIDTH = 110


def _interval(row: Row | None, column: str) -> str:
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
    from analysis.mean_losses import summarize_models  # late, for a --help at once

    summary = summarize_models(read_artefact(results, "loss_differences"))
    rows = [
        [
            row["model"], context_lengths(results, row["model"]),
            f"{row['num_targets']:,}", f"{row['num_documents']:,}",
            f"{row['short_context_loss']:.3f}", f"{row['long_context_loss']:.3f}",
            *(_interval(row, name) for name in ("loss_difference", "expected_gain", "specific_gain")),
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
    from analysis.own_measurements import read_sparse_losses
    from analysis.recovered_gain import excess_over_null, recovered_losses  # late, for a --help at once

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
            in_nats = [_interval(own, "recovered_loss"), _interval(beyond, "excess_loss")]
            rows.append([model, str(k), _fraction(own), _fraction(null), *in_nats])
    rows += [[model, *[_ABSENT] * 5] for model in _models_without(results, losses)]
    header = ["model", "k", "recovered fraction", "its null", "recovered (nats)", "beyond the null (nats)"]
    return as_table(header, rows, widest_cell=None, num_left_columns=1)


def _fraction(row: Row | None) -> str:
    if row is not None and not row["is_gain_clear"]:
        return _NO_GAIN
    return _interval(row, "recovered_fraction")


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
    from analysis.closing_answers import answers  # late, for a --help at once

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
    from analysis.notebook_inputs import fingerprint  # late, for a --help at once

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
