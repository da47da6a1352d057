"""Fill the numbers and draw the figures of the pages: `python -m analysis.figures.pages`.

A page marks a place by `<!-- NAME -->` … `<!-- /NAME -->`. What the function of that name in `FILLED` gives
replaces what stands between, a table on lines of its own. All is from the kept results, in
analysis/reference. A test says that no number would change.
"""

import re
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from analysis import drawing
from analysis.figures import cues, interference, losses, recovered_loss, theory
from analysis.figures import marked_bits as bits
from analysis.figures import unseen_distances as unseen
from analysis.figures.synthetic_tasks import over_seeds
from analysis.read import (
    TARGET,
    Row,
    interval_cell,
    interval_of,
    interval_over_documents,
    read_sparse_losses,
    rows_by,
)
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
    """A share, with its range or interval if there is one: "94% [91, 97]"."""
    ends = "" if low is None or high is None else f" [{100 * low:.0f}, {100 * high:.0f}]"
    return f"{100 * value:.0f}%{ends}"


def share(row: Row, name: str) -> str:
    """A row's column as a share, with its interval."""
    return percent(row[name], row[f"{name}_low"], row[f"{name}_high"])


def fill(text: str) -> str:
    """The page with every marked place filled; KeyError for a name that is not in `FILLED`."""

    def of_place(found: re.Match[str]) -> str:
        content = FILLED[found[1]]()
        content = f"\n{content}\n" if content.startswith("|") else content
        return f"<!-- {found[1]} -->{content}<!-- /{found[1]} -->"

    return re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", of_place, text, flags=re.DOTALL)


STUDY = REFERENCE / "study" / "results"
EVALUATED = REFERENCE / "evaluated" / "results"
SELECTOR = "2m-long-seed0"
EVALUATOR = "2m-long-seed1"


@cache
def _curves(model: str) -> pd.DataFrame:
    return recovered_loss.loss_curves(read_sparse_losses(STUDY, only={"model": [model]}))


@cache
def _pretrained() -> pd.DataFrame:
    return pd.read_parquet(REFERENCE / "real_model" / "few_tokens.parquet")


@cache
def _pretrained_curves() -> pd.DataFrame:
    return recovered_loss.loss_curves(_pretrained())


def _paper_verdict() -> str:
    verdict, recovered, lead = recovered_loss.paper_verdict(_pretrained())
    of_gain = percent(recovered.estimate, recovered.low, recovered.high)
    points = [f"{100 * value:.0f}" for value in (lead.estimate, lead.low, lead.high)]
    return (
        f"{verdict}: 16 tokens recover {of_gain} of the gain, {points[0]} points"
        f" [{points[1]}, {points[2]}] more than recency"
    )


@cache
def _pretrained_effects() -> dict[Hashable, Row]:
    effects = recovered_loss.token_effects(_pretrained())
    return rows_by(effects.query("criterion == 'loss'"), "rule", "k")


def _recovered_in_pretrained(rule: str, k: int) -> str:
    """What k tokens recover of the gain in the pretrained model."""
    return share(_pretrained_effects()[rule, k], "share")


@filled
def recovered_fraction() -> str:
    """What 16 tokens recover of the gain, by rule, at three sizes."""
    curves = [_pretrained_curves(), *(_curves(f"{size}-long-seed0") for size in ("2m", "300k"))]
    of_sizes = [rows_by(of_one, "rule", "distant_context", "k") for of_one in curves]
    labels = {
        "target-agnostic selection": ("leave_one_out_divergence", "own"),
        "recency": ("recency", "own"),
        "random": ("random", "own"),
        "target-aware selection": ("leave_one_out", "own"),
        "its null baseline": ("leave_one_out", "other_document"),
    }
    gains = [interval_of(rows["recency", "own", 16], "gain") for rows in of_sizes]
    table = [["gain of the full context, nats", *gains]]
    for label, names in labels.items():
        found = [rows.get((*names, 16)) for rows in of_sizes]
        table.append([label, *("-" if row is None else share(row, "recovered_share") for row in found)])
    return markdown(["recovered fraction of the gain, 16 tokens", "135 M", "2.3 M", "0.34 M"], table)


@cache
def _effects() -> pd.DataFrame:
    losses = read_sparse_losses(EVALUATED, only={"model": [SELECTOR]}, every_evaluator=True, every_k=True)
    return recovered_loss.token_effects(losses[losses["evaluator"] == EVALUATOR])


@filled
def stricter_test() -> str:
    """What k tokens recover of the KL to another seed, by rule."""
    rows = rows_by(_effects().query("criterion == 'divergence'"), "rule", "k")
    selected = "leave_one_out_divergence"
    ks = (1, 4, 16)
    table = [["share of the total effect recovered", *(share(rows[selected, k], "share") for k in ks)]]
    lines = {"KL recovered, nats": "effect", "null baseline": "null_recovered"}
    for label, name in lines.items():
        table.append([label, *(f"{rows[selected, k][name]:.3f}" for k in ks)])
    for rule in ("recency", "random"):
        table.append([rule, *(f"{rows[rule, k]['effect']:.3f}" for k in ks)])
    return markdown(["tokens restored", *(f"k = {k}" for k in ks)], table)


def _enough(k: int, least: float, most: float) -> str:
    rows = read_artefact(EVALUATED, "dependency_sparsity", only={"model": [SELECTOR]})
    is_meant = (rows["criterion"] == "divergence") & (rows["rule"] == "leave_one_out_divergence")
    rows = rows[is_meant & (rows["evaluator"] == EVALUATOR) & rows["gain"].between(least, most, "left")]
    interval = interval_over_documents(rows["document_id"], rows["k_90"].fillna(999) <= k)
    return f"{percent(interval.estimate, interval.low, interval.high)} of {len(rows)}"


@filled
def read_again() -> str:
    """What the preregistered studies' verdict did not look at."""
    first, second = (
        unseen.read_again(name).to_dict("records") for name in ("outcome_targets", "again_targets")
    )
    rows = [
        [one["number"], interval_of(one, "slope"), interval_of(other, "slope")]
        for one, other in zip(first, second, strict=True)
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
        if not row["outcome"].endswith(("at 80", "at 96")):
            ends = [row[f"slope{end}_share"] for end in ("", "_low", "_high")]
            cell = "" if row["outcome"].endswith("at 64") else percent(*ends)
            rows.append([row["outcome"], f"{row['mean']:.3f}", interval_of(row, "slope"), cell])
    return markdown(
        ["outcome, tokens of context", "mean, nats", "slope, nats per doubling", "slope / mean"], rows
    )


@filled
def distance_or_number() -> str:
    """Conditions of experiment B, with the share of what both do."""
    rows = rows_by(_placed()[1], "text", "role", "condition")
    lines = []
    for condition in unseen.CONDITIONS:
        short = [rows[kind, unseen.SHORT, condition] for kind in ("own", "swap")]
        cells = [f"{interval_of(row, 'value')}, {percent(row['share'])}" for row in short]
        lines.append([condition, *cells, interval_of(rows["swap", unseen.LONG, condition], "value")])
    return markdown(
        ["distant tokens", "rise of the loss", "interference", "interference, long-context models"], lines
    )


def _exact_match(folder: str, task: str, positions: str, size: int) -> str:
    """Mean over seeds with their range; starred if a seed has not learned the task in distribution."""
    cells = over_seeds(read_artefact(REFERENCE / "synthetic" / folder, "synthetic_accuracy"))
    found = rows_by(cells[cells["sparsity"].isna()], "task", "positions", "size").get((task, positions, size))
    if found is None:
        return ""
    return percent(*(found[name] for name in ("exact_match", "lowest", "highest"))) + (
        "" if found["is_learnt"] else " \\*"
    )


@filled
def position_coupling() -> str:
    """Exact match by position scheme."""
    rows = {
        "variable assignment, 18 assignments (3 times)": ("variable_assignment", 18),
        "parity with scratchpad, 30 bits (3 times)": ("parity_scratchpad", 30),
        "copy, 30 letters (3 times)": ("copy", 30),
        "addition, 24 digits (3 times)": ("addition", 24),
    }
    schemes = ("predicted", "coupled", "pose")
    lines = [
        [label, *(_exact_match("results", task, scheme, size) for scheme in schemes)]
        for label, (task, size) in rows.items()
    ]
    return markdown(["task, test size", "PPC", "coupled IDs given", "PoSE alone"], lines)


@filled
def full_rotary() -> str:
    """PPC with a quarter of each head rotated and with all of it."""
    rows = {
        "copy, 30 letters (3 times)": ("copy", "copy", 30),
        "copy, 40 letters (4 times)": ("copy", "copy", 40),
        "variable assignment, 18 (3 times)": ("variable_assignment", "variable_assignment", 18),
        "addition, 24 digits (3 times)": ("addition", "addition_padded", 24),
    }
    lines = [
        [
            label,
            _exact_match("results", task, "predicted", size),
            _exact_match("rotated", other, "predicted", size),
        ]
        for label, (task, other, size) in rows.items()
    ]
    return markdown(["task, test size, all PPC", "rotary_pct 0.25", "rotary_pct 1"], lines)


@cache
def _functions() -> pd.DataFrame:
    return read_artefact(REFERENCE / "length" / "functions", "synthetic_accuracy")


@filled
def marked_bits() -> str:
    """Accuracy of each function at ten times the trained length, by k."""
    cells = rows_by(bits.marked_bits(_functions()), "task", "size", "k")
    rows = [
        [words, *(percent(cells[f"sparse_{name}", 180, k]["exact_match"]) for k in range(1, 9))]
        for name, words in bits.FUNCTIONS.items()
    ]
    return markdown(["function", *(f"k = {k}" for k in range(1, 9))], rows)


@cache
def _cues() -> pd.DataFrame:
    return cues.cue_distances(read_artefact(REFERENCE / "length" / "cues", "synthetic_examples"))


@filled
def cue_distances() -> str:
    """Excess loss by distance of the farthest cue, and the contrast."""
    means = _cues().groupby(["distance", "task"], observed=True)["mean"].mean().unstack()
    contrasts = rows_by(cues.cue_contrasts(_cues()), "distance")
    differences = {name: interval_of(row, "difference") for name, row in contrasts.items()}
    rows = [
        [f"{name} tokens", *(f"{row[f'cues_{k}']:.3f}" for k in (1, 2, 4)), differences.get(name, "")]
        for name, row in means.iterrows()
    ]
    rows.append(["mean beyond 64", "", "", "", differences["mean"]])
    return markdown(["farthest cue", "one cue", "two cues", "four cues", "four less one"], rows)


@filled
def cue_contrasts() -> str:
    """The planned contrasts of the growth of excess loss with length, and PoSE."""
    accuracy = read_artefact(REFERENCE / "synthetic" / "cues", "synthetic_accuracy")
    rows = rows_by(cues.contrasts(cues.growths(accuracy)), "contrast")
    names = {
        "four cues less one": "four cues less one, anywhere",
        "near less anywhere": "near the question less anywhere",
        "coupled less plain positions": "coupled less plain IDs",
        "PoSE less plain positions": "PoSE less plain IDs",
        "four cues less one, PoSE": "four cues less one, PoSE",
        "scaled attention less plain": "log-n scaled attention less plain",
    }
    lines = [
        [
            words,
            *(f"{rows[name][side]:.3f}" for side in ("first", "second")),
            interval_of(rows[name], "difference"),
        ]
        for name, words in names.items()
    ]
    return markdown(["contrast of growth, nats per doubling", "first", "second", "difference"], lines)


@filled
def theory_errors() -> str:
    """Squared error of sparse functional attention with local S*."""
    table = theory.by_length(read_artefact(REFERENCE / "theory" / "results", theory.STAGE))
    conditions = rows_by(table[table["length_ratio"] == 8], "model")
    numbers = {
        "error in distribution × 10⁵": ("in_distribution_error", 1e5),
        "error at 8 L × 10³": ("squared_error", 1e3),
        "exponent of its growth from L to 8 L": ("growth_exponent", 1),
    }
    rows = []
    for label, (name, scale) in numbers.items():
        ends = [
            [scale * conditions[f"local-k{k}"][f"{name}{end}"] for end in ("", "_low", "_high")]
            for k in (1, 2, 3)
        ]
        rows.append([label, *(f"{value:.2f} [{low:.2f}, {high:.2f}]" for value, low, high in ends)])
    return markdown(["local S*", "k = 1", "k = 2", "k = 3"], rows)


@cache
def _places() -> pd.DataFrame:
    targets = pd.read_parquet(REFERENCE / "real_model" / interference.TARGETS_FILE)
    return interference.mechanism(targets)


def _range(number: int, start: int, digits: int = 3) -> str:
    found = _places().query(f"num_distant == {number} and near_start == {start}")["interference"]
    ends = list(dict.fromkeys(f"{value:.{digits}f}" for value in (found.min(), found.max())))
    return " to ".join(ends) if len(found) else "-"


@filled
def interference_by_number() -> str:
    """Length interference in SmolLM2 by number, at a trained and at an unseen distance: range over texts."""
    numbers = sorted(_places()["num_distant"].unique())
    rows = [[f"{number:,}", _range(number, 7680), _range(number, 11776)] for number in numbers]
    return markdown(["distant tokens", "at trained distances", "at unseen distances"], rows)


@cache
def _real_model_slopes() -> pd.DataFrame:
    targets = pd.read_parquet(REFERENCE / "real_model" / interference.TARGETS_FILE)
    known = interference.with_outcomes(targets.dropna(subset=["total_effect"]))
    return interference.slopes(known, interference.PRIMARY, interference.TRAINED, [])


@filled
def real_model_slopes() -> str:
    """Slopes of length interference on the tokens needed, in percent of the mean per doubling."""
    rows = rows_by(_real_model_slopes(), "variant", "kind")
    lines = {
        "ratio (Poisson)": ("as planned", "ratio"),
        "nats over mean": ("as planned", "nats"),
        "share of what can be lost, over mean": ("as planned", "share"),
        "ratio, lowest eighth left out": ("lowest eighth left out", "ratio"),
        "ratio, highest eighth left out": ("highest eighth left out", "ratio"),
    }
    cells = [[words, share(rows[key], "slope")] for words, key in lines.items()]
    return markdown(["slope per doubling of tokens needed", "percent of the mean"], cells)


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
    most = 100 * table[table["size"].isin([72, 108, 144])].groupby("seed")["difference"].max()
    return ", ".join(f"{value:.1f}" for value in most)


@cache
def _models(folder: Path) -> dict[str, Row]:
    return rows_by(losses.summarize_models(read_artefact(folder, "loss_differences")), "model")


def _worth(model: str) -> str:
    return interval_cell(_models(EVALUATED)[model], "loss_difference")


def _beyond_every_length() -> str:
    rows = _models(REFERENCE / "study" / "novels" / "results")
    harm = [-row["loss_difference"] for model, row in rows.items() if model.startswith("2m")]
    return f"{min(harm):.2f} to {max(harm):.2f}"


def _window(kept: int) -> str:
    row = rows_by(losses.needed_context(read_artefact(EVALUATED, "length_losses")), "model", "criterion")
    window = interval_of(row[SELECTOR, "loss"], f"window_{kept}")
    return f"{window.estimate:.0f} [{window.low:.0f}, {window.high:.0f}]"


def _repeated_trigrams(size: str) -> str:
    rows = read_artefact(STUDY, "loss_differences", only={"model": [f"{size}-long-seed0"]})
    kinds = pd.read_parquet(REFERENCE / "study" / "data" / "token_categories.parquet")
    rows = rows.merge(kinds, on=TARGET)
    of_repeated = rows["loss_difference"].where(rows["repetition"] == "repeated trigram", 0)
    interval = interval_over_documents(rows["document_id"], of_repeated, rows["loss_difference"])
    return percent(interval.estimate, interval.low, interval.high)


def _right_number(rule: str, ablation: str, criterion: str) -> str:
    measures = rows_by(
        pd.read_parquet(REFERENCE / "measures.parquet"), "rule", "ablation", "evaluator", "criterion"
    )
    return share(measures[rule, ablation, "another seed", criterion], "right_sparsity")


def _kept_by_policies() -> str:
    policies = pd.read_parquet(REFERENCE / "cache_policies.parquet").query("k == 16 and not is_null")
    rules = ("snapkv", "attention", "streaming_llm", "recency", "quest")
    kept = policies[policies["rule"].isin(rules)]["divergence_kept"]
    return f"{percent(kept.min())} to {percent(kept.max())}"


def _of_leave_one_out(rule: str) -> str:
    methods = pd.read_parquet(REFERENCE / "methods.parquet").query("k == 4 and ablation == 'swap'")
    effect = methods.set_index("rule")["divergence_effect"]
    return percent(effect[rule] / effect["leave_one_out_divergence"])


FILLED |= {
    "theory": theory_errors,
    "paper_verdict": _paper_verdict,
    "paper_sample": lambda: _sample(_pretrained_curves().iloc[-1]),
    "paper_64": lambda: _recovered_in_pretrained("leave_one_out_divergence", 64),
    "paper_256": lambda: _recovered_in_pretrained("leave_one_out_divergence", 256),
    "paper_attention": lambda: _recovered_in_pretrained("attention", 16),
    "paper_attention_no_sink": lambda: _recovered_in_pretrained("attention_no_sink", 16),
    "total_effect": lambda: str(interval_of(_effects().query("criterion == 'divergence'").iloc[0], "gain")),
    "four_of_large": lambda: _enough(4, 1, 999),
    "sixteen_of_large": lambda: _enough(16, 1, 999),
    "four_of_small": lambda: _enough(4, 0.1, 0.5),
    "worth_long": lambda: _worth(SELECTOR),
    "worth_pose": lambda: _worth("2m-short-pose-seed0"),
    "worth_contiguous": lambda: _worth("2m-short-contiguous-seed0"),
    "beyond_every_length": _beyond_every_length,
    "window_90": lambda: _window(90),
    "window_99": lambda: _window(99),
    "trigrams_2m": lambda: _repeated_trigrams("2m"),
    "trigrams_300k": lambda: _repeated_trigrams("300k"),
    "right_number": lambda: _right_number("leave_one_out_divergence", "swap", "divergence"),
    "kept_by_policies": _kept_by_policies,
    "attention_share": lambda: _of_leave_one_out("attention"),
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
    "cue_distances_verdict": lambda: cues.verdict_of_distances(cues.cue_contrasts(_cues())),
    "interference_counts": lambda: _sample(_places().iloc[0], ", "),
    "interference_unseen": lambda: _range(512, 11776, 1),
    "interference_squeezed": lambda: str(
        interval_of(_places().query("num_distant == 11776").iloc[0], "interference")
    ),
}
"""Numbers and verdicts within sentences."""


def draw() -> None:
    """Draw every figure of the pages into `REFERENCE`."""
    label = drawing.model_labels(STUDY, "sparse_context_losses")[SELECTOR]
    labels = drawing.model_labels(EVALUATED, "loss_differences")
    differences = losses.losses_beside_reference(read_artefact(EVALUATED, "length_losses"), SELECTOR, 16)
    accuracy = read_artefact(REFERENCE / "synthetic" / "cues", "synthetic_accuracy")
    errors = theory.by_length(read_artefact(REFERENCE / "theory" / "results", theory.STAGE))
    pretrained = drawing.ModelLabel(
        "SmolLM2-135M-Instruct", drawing.OTHER_MODELS[0], "135 M parameters", train_context_length=8192
    )
    figures = {
        "real_model/loss_against_k": recovered_loss.loss_figure(
            _pretrained_curves().query("k <= 256"), pretrained
        ),
        "study/loss_against_k": recovered_loss.loss_figure(_curves(SELECTOR), label),
        "evaluated/token_effects": recovered_loss.effects_figure(
            _effects(), labels[SELECTOR], labels[EVALUATOR].text
        ),
        "evaluated/loss_against_context_length": losses.lengths_figure(differences, labels, [64, 256]),
        "synthetic/cues": cues.cues_figure(accuracy),
        f"theory/{theory.STAGE}": theory.errors_figure(errors),
    }
    modules = {unseen: "length", bits: "length", cues: "length", interference: "real_model"}
    for module, folder in modules.items():
        for shown in module.report(REFERENCE / folder):
            figures |= {f"{folder}/{name}": figure for name, figure in shown.figures.items()}
    for path, figure in figures.items():
        drawing.save(figure, REFERENCE, path, with_pdf=False)


if __name__ == "__main__":
    draw()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := fill(text)) != text:
            page.write_text(new, encoding="utf-8")
            sys.stdout.write(f"filled {page.relative_to(ROOT)}\n")
