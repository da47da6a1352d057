"""Fill the tables and numbers of the pages from the kept results: `python -m analysis.figures.pages`.

A page marks a place by `<!-- NAME -->` … `<!-- /NAME -->`. What the function of that name in `FILLED` gives
replaces what stands between, a table on lines of its own. A test says that nothing would change.
"""

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from analysis.figures import cues, interference
from analysis.figures import marked_bits as bits
from analysis.figures import unseen_distances as unseen
from analysis.figures.synthetic_tasks import over_seeds
from analysis.figures.theory import by_length
from analysis.read import interval_of, rows_by
from pipeline.results.read import read_artefact

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "analysis" / "reference"
PAGES = (ROOT / "README.md", ROOT / "analysis" / "README.md", ROOT / "analysis" / "SYNTHETIC.md")
FILLED: dict[str, Callable[[], str]] = {}
"""Name of a place -> what stands there, Markdown."""


def filled(function: Callable[[], str]) -> Callable[[], str]:
    """Register what fills the places of the function's name."""
    FILLED[function.__name__] = function
    return function


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def percent(value: float, low: float | None = None, high: float | None = None) -> str:
    """A share, with its range or interval where there is one: "94% [91, 97]"."""
    ends = "" if low is None or high is None else f" [{100 * low:.0f}, {100 * high:.0f}]"
    return f"{100 * value:.0f}%{ends}"


def fill(text: str) -> str:
    """The page with every marked place filled; KeyError for a name that is not in `FILLED`."""

    def of_place(found: re.Match[str]) -> str:
        content = FILLED[found[1]]()
        name = found[1]
        content = f"\n{content}\n" if content.startswith("|") else content
        return f"<!-- {name} -->{content}<!-- /{name} -->"

    return re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", of_place, text, flags=re.DOTALL)


@cache
def _cells(folder: str) -> pd.DataFrame:
    return over_seeds(read_artefact(REFERENCE / "synthetic" / folder, "synthetic_accuracy"))


def _exact_match(folder: str, task: str, positions: str, size: int) -> str:
    """Mean over seeds with their range; starred where a seed has not learnt the task in distribution."""
    cells = _cells(folder)
    is_cell = (cells["task"] == task) & (cells["positions"] == positions) & (cells["size"] == size)
    (row,) = cells[is_cell].to_dict("records")
    star = "" if row["is_learnt"] else " \\*"
    return percent(row["exact_match"], row["lowest"], row["highest"]) + star


@filled
def read_again() -> str:
    """What the preregistered studies' verdict did not look at."""
    first, second = (unseen.read_again(name) for name in ("outcome_targets", "again_targets"))
    rows = [
        [one["number"], interval_of(one, "slope"), interval_of(other, "slope")]
        for one, other in zip(first.to_dict("records"), second.to_dict("records"), strict=True)
    ]
    return markdown(["slope per doubling of needed tokens", "first study", "second study"], rows)


@cache
def _placed() -> tuple[pd.DataFrame, pd.DataFrame]:
    placed = pd.read_parquet(REFERENCE / "length" / "placed_targets.parquet")
    return unseen.unseen_distances(placed), unseen.distance_or_number(placed)


@filled
def unseen_distances() -> str:
    """Slopes of experiment A: the primary, its negative control, and interference."""
    rows = []
    for row in _placed()[0].query("variant == 'as planned'").to_dict("records"):
        if row["outcome"].endswith(("at 80", "at 96")):
            continue
        share = (
            ""
            if row["outcome"].endswith("at 64")
            else percent(*(row[f"slope{end}_share"] for end in ("", "_low", "_high")))
        )
        rows.append([row["outcome"], f"{row['mean']:.3f}", interval_of(row, "slope"), share])
    return markdown(
        ["outcome, tokens of context", "mean, nats", "slope, nats per doubling", "slope / mean"], rows
    )


@filled
def distance_or_number() -> str:
    """Conditions of experiment B, with the share of what both do."""
    rows = rows_by(_placed()[1], "text", "role", "condition")
    lines = []
    for condition in unseen.CONDITIONS:
        cells = [
            f"{interval_of(row, 'value')}, {percent(row['share'])}"
            for row in (rows[kind, unseen.SHORT, condition] for kind in ("own", "swap"))
        ]
        long_context = interval_of(rows["swap", unseen.LONG, condition], "value")
        lines.append([condition, *cells, long_context])
    return markdown(
        ["distant tokens", "rise of the loss", "interference", "interference, long-context models"], lines
    )


@filled
def position_coupling() -> str:
    """Exact match by position scheme."""
    rows = [
        (
            "variable assignment, 18 assignments (3 times)",
            "variable_assignment",
            18,
            ("predicted", "coupled", "pose"),
        ),
        (
            "parity with scratchpad, 30 bits (3 times)",
            "parity_scratchpad",
            30,
            ("predicted", "coupled", "pose"),
        ),
        ("copy, 30 letters (3 times)", "copy", 30, ("predicted", None, "pose")),
        ("addition, 24 digits (3 times)", "addition", 24, ("predicted", "coupled", "pose")),
    ]
    return markdown(
        ["task, test size", "PPC", "coupled IDs given", "PoSE alone"],
        [
            [
                label,
                *(
                    "" if scheme is None else _exact_match("results", task, scheme, size)
                    for scheme in schemes
                ),
            ]
            for label, task, size, schemes in rows
        ],
    )


@filled
def full_rotary() -> str:
    """PPC with a quarter of each head rotated and with all of it."""
    rows = [
        ("copy, 30 letters (3 times)", "copy", "copy", 30),
        ("copy, 40 letters (4 times)", "copy", "copy", 40),
        ("variable assignment, 18 (3 times)", "variable_assignment", "variable_assignment", 18),
        ("addition, 24 digits (3 times)", "addition", "addition_padded", 24),
    ]
    return markdown(
        ["task, test size, all PPC", "rotary_pct 0.25", "rotary_pct 1"],
        [
            [
                label,
                _exact_match("results", task, "predicted", size),
                _exact_match("rotated", other, "predicted", size),
            ]
            for label, task, other, size in rows
        ],
    )


@cache
def _functions() -> pd.DataFrame:
    return read_artefact(REFERENCE / "length" / "functions", "synthetic_accuracy")


@filled
def marked_bits() -> str:
    """Accuracy of each function at ten times the trained length, by k."""
    cells = rows_by(bits.marked_bits(_functions()), "task", "size", "k")
    rows = []
    for name in bits.FUNCTIONS:
        of_k = [percent(cells[f"sparse_{name}", 180, k]["exact_match"]) for k in range(1, 9)]
        rows.append([{"or": "OR", "lookup": "look-up"}.get(name, name), *of_k])
    return markdown(["function", *(f"k = {k}" for k in range(1, 9))], rows)


@cache
def _cues() -> pd.DataFrame:
    return read_artefact(REFERENCE / "length" / "cues", "synthetic_examples")


@filled
def cue_distances() -> str:
    """Excess loss by distance of the farthest cue, and the contrast."""
    cells = cues.cue_distances(_cues())
    means = cells.groupby(["distance", "task"], observed=True)["mean"].mean().unstack()
    contrasts = rows_by(cues.cue_contrasts(cells), "distance")
    rows = [
        [
            f"{name} tokens",
            *(f"{means.loc[name, f'cues_{k}']:.3f}" for k in (1, 2, 4)),
            interval_of(contrasts[name], "difference") if name in contrasts else "",
        ]
        for name in means.index
    ]
    rows.append(["mean beyond 64", "", "", "", interval_of(contrasts["mean"], "difference")])
    return markdown(["farthest cue", "one cue", "two cues", "four cues", "four less one"], rows)


@cache
def _places() -> pd.DataFrame:
    targets = pd.read_parquet(REFERENCE / "real_model" / "interference_targets.parquet")
    return interference.mechanism(targets)


@filled
def interference_by_number() -> str:
    """Length interference in SmolLM2 by number, at a trained and at an unseen distance: range over texts."""
    places = _places()

    def cell(number: int, start: int) -> str:
        found = places.query(f"num_distant == {number} and near_start == {start}")["interference"]
        if found.empty:
            return "-"
        least, most = f"{found.min():.3f}", f"{found.max():.3f}"
        return least if least == most else f"{least} to {most}"

    rows = [
        [f"{number:,}", cell(number, 7680), cell(number, 11776)]
        for number in sorted(places["num_distant"].unique())
    ]
    return markdown(["distant tokens", "at trained distances", "at unseen distances"], rows)


@filled
def cue_contrasts() -> str:
    """The planned contrasts of the growth of excess loss with length, and PoSE."""
    table = cues.contrasts(
        cues.growths(read_artefact(REFERENCE / "synthetic" / "cues", "synthetic_accuracy"))
    )
    rows = rows_by(table[table["attention_scaling"] == cues.NONE], "contrast")
    names = {
        "four cues less one": "four cues less one, anywhere",
        "near less anywhere": "near the question less anywhere",
        "coupled less plain positions": "coupled less plain IDs",
        "PoSE less plain positions": "PoSE less plain IDs",
        "four cues less one, PoSE": "four cues less one, PoSE",
        "scaled attention less plain": "log-n scaled attention less plain",
    }
    return markdown(
        ["contrast of growth, nats per doubling", "first", "second", "difference"],
        [
            [
                label,
                *(f"{rows[name][side]:.3f}" for side in ("first", "second")),
                interval_of(rows[name], "difference"),
            ]
            for name, label in names.items()
        ],
    )


@filled
def theory() -> str:
    """Squared error of sparse functional attention with local S*."""
    table = by_length(read_artefact(REFERENCE / "theory" / "results", "sparse_functional_attention"))
    conditions = rows_by(table[table["length_ratio"] == 8], "model")
    numbers = {
        "error in distribution × 10⁵": ("in_distribution_error", 1e5),
        "error at 8 L × 10³": ("squared_error", 1e3),
        "exponent of its growth from L to 8 L": ("growth_exponent", 1),
    }
    rows = []
    for label, (name, scale) in numbers.items():
        intervals = [interval_of(conditions[f"local-k{k}"], name) for k in (1, 2, 3)]
        rows.append(
            [
                label,
                *(
                    f"{scale * of.estimate:.2f} [{scale * of.low:.2f}, {scale * of.high:.2f}]"
                    for of in intervals
                ),
            ]
        )
    return markdown(["local S*", "k = 1", "k = 2", "k = 3"], rows)


def _sample(row: pd.Series, between: str = " of ") -> str:
    return f"{row['num_targets']:,} targets{between}{row['num_documents']} texts"


def _or_less_parity() -> str:
    interval = interval_of(bits.verdict(_functions())[1], "exact_match")
    return f"{100 * interval.estimate:.0f} points [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def _distance_or_number_verdict() -> str:
    of_loss, of_kl = (unseen.verdict_of_distance_or_number(_placed()[1], kind) for kind in ("own", "swap"))
    return of_loss if of_loss == of_kl else f"{of_loss} by the loss, {of_kl} by the interference"


def _earlier_parity_beside_or() -> str:
    table = bits.earlier_parity_beside_or()
    table = table[table["size"].isin([72, 108, 144])]
    most = (100 * table.groupby("seed")["difference"].max()).round(1)
    return ", ".join(f"{value:.1f}" for value in most)


def _interference_unseen() -> str:
    of_kinds = _places().query("num_distant == 512 and near_start == 11776")["interference"]
    return f"{of_kinds.min():.1f} to {of_kinds.max():.1f}"


def _interference_squeezed() -> str:
    (row,) = _places().query("num_distant == 11776").to_dict("records")
    return str(interval_of(row, "interference"))


@cache
def _real_model_slopes() -> pd.DataFrame:
    targets = pd.read_parquet(REFERENCE / "real_model" / interference.TARGETS_FILE)
    known = interference.with_outcomes(targets.dropna(subset=["total_effect"]))
    return interference.slopes(known, interference.PRIMARY, interference.TRAINED, {})


@filled
def real_model_slopes() -> str:
    """Slopes of length interference on the tokens needed, in percent of the mean per doubling."""
    rows = rows_by(_real_model_slopes(), "variant", "kind")
    words = {
        "ratio": "ratio (Poisson)",
        "nats": "nats over mean",
        "share": "share of what can be lost, over mean",
    }
    lines = [("as planned", kind, words[kind]) for kind in interference.PRIMARIES]
    lines += [
        (f"{end} eighth left out", "ratio", f"ratio, {end} eighth left out") for end in ("lowest", "highest")
    ]
    cells = []
    for variant, kind, name in lines:
        row = rows[variant, kind]
        cells.append([name, percent(row["slope"], row["slope_low"], row["slope_high"])])
    return markdown(["slope per doubling of tokens needed", "percent of the mean"], cells)


FILLED |= {
    "real_model_verdict": lambda: interference.verdict(_real_model_slopes()),
    "real_model_sample": lambda: _sample(_real_model_slopes().iloc[0]),
    "real_model_natural": lambda: interference.natural_check(
        pd.read_parquet(REFERENCE / "real_model" / interference.NATURAL_FILE)
    )[1],
    "unseen_distances_verdict": lambda: unseen.verdict_of_unseen_distances(_placed()[0]),
    "unseen_distances_sample": lambda: _sample(_placed()[0].iloc[0]),
    "distance_or_number_verdict": _distance_or_number_verdict,
    "marked_bits_verdict": lambda: bits.verdict(_functions())[0],
    "or_less_parity": _or_less_parity,
    "earlier_parity_beside_or": _earlier_parity_beside_or,
    "cue_distances_verdict": lambda: cues.verdict_of_distances(
        cues.cue_contrasts(cues.cue_distances(_cues()))
    ),
    "interference_counts": lambda: _sample(_places().iloc[0], ", "),
    "interference_unseen": _interference_unseen,
    "interference_squeezed": _interference_squeezed,
}
"""Numbers and verdicts within sentences."""

if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := fill(text)) != text:
            page.write_text(new, encoding="utf-8")
            sys.stdout.write(f"filled {page.relative_to(ROOT)}\n")
