"""Fill the numbers and draw the figures of the pages: `python -m analysis.figures.pages`.

A page marks a place by `<!-- NAME -->` … `<!-- /NAME -->`. What `numbers` gives for this name replaces what
stands between, a table on lines of its own. All is from the kept results, in analysis/reference. A test says
that no number would change. Numbers of finished checks stand on the pages without marks, beside the commit
that made them.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from analysis import drawing
from analysis.figures import (
    cues,
    interference,
    losses,
    marked_bits,
    reach,
    recovered_loss,
    theory,
    unseen_distances,
)
from analysis.figures.synthetic_tasks import over_seeds
from analysis.read import Row, interval_of, interval_over_documents, read_sparse_losses, rows_by
from pipeline.results.read import read_artefact
from pipeline.results.statistics import Interval

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "analysis" / "reference"
PAGES = (ROOT / "README.md", ROOT / "analysis" / "README.md", ROOT / "analysis" / "SYNTHETIC.md")
STUDY = REFERENCE / "study" / "results"
EVALUATED = REFERENCE / "evaluated" / "results"
SMOLLM2, GEMMA = "SmolLM2-135M-Instruct", "Gemma-3-270M"
SELECTOR = "2m-long-seed0"
EVALUATOR = "2m-long-seed1"
SELECTED = "leave_one_out_divergence"
Numbers = dict[str, str]
"""Name of a place -> what stands there, Markdown."""


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def percent(share: Interval, unit: str = "%") -> str:
    """A share with its interval or range: "94% [91, 97]"."""
    return f"{100 * share.estimate:.0f}{unit} [{100 * share.low:.0f}, {100 * share.high:.0f}]"


def sample(row: Row | pd.Series, between: str = " of ") -> str:
    """The size of a row's sample: "192 targets of 24 texts"."""
    return f"{row['num_targets']:,} targets{between}{row['num_documents']} texts"


@cache
def few_tokens(model: str) -> pd.DataFrame:
    """Losses of a pretrained model with k tokens, nats: its rows of `sparse_context_losses`."""
    path = REFERENCE / "real_model" / "few_tokens.parquet"
    return pd.read_parquet(path, filters=[("model", "==", model)])


@cache
def curves() -> dict[str, pd.DataFrame]:
    """Model or size -> loss against k."""
    sparse = {"SmolLM2 135 M": few_tokens(SMOLLM2), "Gemma 3 270 M": few_tokens(GEMMA)}
    for size, model in (("2.3 M", SELECTOR), ("0.34 M", "300k-long-seed0")):
        sparse[size] = read_sparse_losses(STUDY, only={"model": [model]})
    return {size: recovered_loss.loss_curves(of_size) for size, of_size in sparse.items()}


@cache
def effects() -> pd.DataFrame:
    """Recovery of another seed's prediction by the tokens that one seed selected."""
    sparse = read_sparse_losses(EVALUATED, only={"model": [SELECTOR]}, every_evaluator=True, every_k=True)
    return recovered_loss.token_effects(sparse[sparse["evaluator"] == EVALUATOR])


def of_few_tokens() -> Numbers:
    """The paper's verdict on both pretrained models, and what 16 tokens recover of each model, by rule."""
    smollm2, gemma = few_tokens(SMOLLM2), few_tokens(GEMMA)
    same_texts = smollm2[smollm2["document_id"].isin(gemma["document_id"])]

    def verdict(rows: pd.DataFrame, words: str = "{}: {}, {}") -> str:
        word, recovered, lead = recovered_loss.paper_verdict(rows)
        return words.format(word, percent(recovered), percent(lead, " points"))

    in_full = "{}: 16 tokens recover {} of the gain, {} more than recency"
    # A null, where there is one, would decide the targets.
    own = smollm2.query("distant_context == 'own'")
    by_loss = recovered_loss.token_effects(own).query("criterion == 'loss'")
    shares = {key: percent(interval_of(row, "share")) for key, row in rows_by(by_loss, "rule", "k").items()}
    of_sizes = [rows_by(of_size, "rule", "distant_context", "k") for of_size in curves().values()]
    # The gain does not depend on the rule, and every size has this one.
    gains = [interval_of(rows["recency", "own", 16], "gain") for rows in of_sizes]
    table = [["gain of the full context, nats", *gains]]
    for words, rule, distant_context in (
        ("target-agnostic selection", SELECTED, "own"),
        ("its null baseline", SELECTED, "other_document"),
        ("recency", "recency", "own"),
        ("random", "random", "own"),
        ("target-aware selection", "leave_one_out", "own"),
        ("its null baseline", "leave_one_out", "other_document"),
    ):
        found = [rows.get((rule, distant_context, 16)) for rows in of_sizes]
        cells = ["-" if row is None else percent(interval_of(row, "recovered_share")) for row in found]
        table.append([words, *cells])
    return {
        "paper_verdict": verdict(smollm2, in_full),
        "paper_verdict_gemma": verdict(gemma, in_full),
        "paper_gemma": verdict(gemma),
        "paper_same_texts": verdict(same_texts),
        "paper_sample": sample(curves()["SmolLM2 135 M"].iloc[-1]),
        "paper_sample_gemma": sample(curves()["Gemma 3 270 M"].iloc[-1]),
        "paper_null_sample": sample(of_sizes[0][SELECTED, "other_document", 16]),
        "paper_lead_over_null": percent(recovered_loss.lead_over_null(smollm2), " points"),
        "paper_64": shares[SELECTED, 64],
        "paper_256": shares[SELECTED, 256],
        "paper_attention": shares["attention", 16],
        "paper_attention_no_sink": shares["attention_no_sink", 16],
        "recovered_fraction": markdown(["recovered fraction of the gain, 16 tokens", *curves()], table),
    }


def of_stricter_test() -> Numbers:
    """Recovery of the KL to another seed by k tokens, and the predictions for which k are enough."""
    rows = rows_by(effects().query("criterion == 'divergence'"), "rule", "k")
    ks = (1, 4, 16)
    table = [
        [
            "share of the total effect recovered",
            *(percent(interval_of(rows[SELECTED, k], "share")) for k in ks),
        ]
    ]
    for words, rule, name in (
        ("KL recovered, nats", SELECTED, "effect"),
        ("null baseline", SELECTED, "null_recovered"),
        ("recency", "recency", "effect"),
        ("random", "random", "effect"),
    ):
        table.append([words, *(f"{rows[rule, k][name]:.3f}" for k in ks)])
    only = {"model": [SELECTOR], "evaluator": [EVALUATOR], "rule": [SELECTED], "criterion": ["divergence"]}
    targets = read_artefact(EVALUATED, "dependency_sparsity", only=only)

    def enough(k: int, least: float, most: float) -> str:
        # "left": 0.1 counts, 0.5 does not; 999 stands for no upper end.
        between = targets[targets["gain"].between(least, most, "left")]
        # Null where no studied k reaches 90%: more than any k that is asked about.
        share = interval_over_documents(between["document_id"], between["k_90"].fillna(999) <= k)
        return f"{percent(share)} of {len(between)}"

    return {
        "total_effect": str(interval_of(rows[SELECTED, 1], "gain")),
        "stricter_test": markdown(["tokens restored", *(f"k = {k}" for k in ks)], table),
        "four_of_large": enough(4, 1, 999),
        "sixteen_of_large": enough(16, 1, 999),
        "four_of_small": enough(4, 0.1, 0.5),
    }


@cache
def interference_targets() -> pd.DataFrame:
    """Length interference of the pretrained model, a row a target."""
    return pd.read_parquet(REFERENCE / "real_model" / interference.TARGETS_FILE)


@cache
def told_facts() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Told facts and their questions in two pretrained models: a row per item and gap; their curves."""
    items = pd.read_parquet(REFERENCE / "real_model" / reach.REACH_FILE)
    return items, reach.curves(items)


@cache
def placed_targets() -> pd.DataFrame:
    """Losses of the models trained here behind tokens at chosen IDs."""
    return pd.read_parquet(REFERENCE / "length" / "placed_targets.parquet")


def of_length() -> Numbers:
    """Interference by number and distance, and the two verdicts on tokens needed."""
    places = interference.mechanism(interference_targets())

    def between_texts(number: int, start: int, digits: int = 3) -> str:
        found = places.query(f"num_distant == {number} and near_start == {start}")["interference"]
        ends = [f"{value:.{digits}f}" for value in (found.min(), found.max())]
        # One number where both ends round to the same.
        return " to ".join(dict.fromkeys(ends)) if len(found) else "-"

    starts = (7680, 11776)
    by_number = [
        [f"{number:,}", *(between_texts(number, start) for start in starts)]
        for number in sorted(places["num_distant"].unique())
    ]
    slopes = interference.slopes(interference.with_outcomes(interference_targets()))
    rows = rows_by(slopes, "variant", "kind")
    lines = {
        "ratio (Poisson)": ("as planned", "ratio"),
        "nats over mean": ("as planned", "nats"),
        "share of what can be lost, over mean": ("as planned", "share"),
        "ratio, lowest eighth left out": ("lowest eighth left out", "ratio"),
        "ratio, highest eighth left out": ("highest eighth left out", "ratio"),
    }
    cells = [[words, percent(interval_of(rows[key], "slope"))] for words, key in lines.items()]
    natural = pd.read_parquet(REFERENCE / "real_model" / interference.NATURAL_FILE)
    gaps = unseen_distances.unseen_distances(placed_targets())
    squeezed = places.query("num_distant == 11776").iloc[0]
    return {
        "interference_counts": sample(places.iloc[0], ", "),
        "interference_by_number": markdown(
            ["distant tokens", *(f"near from {start:,}" for start in starts)], by_number
        ),
        "interference_of_1": between_texts(1, 11776, 2),
        "interference_of_64": between_texts(64, 11776, 1),
        "interference_unseen": between_texts(512, 11776, 1),
        "interference_of_1536": between_texts(1536, 11776, 1),
        "interference_squeezed": str(interval_of(squeezed, "interference")),
        "real_model_verdict": interference.verdict(slopes),
        "real_model_sample": sample(slopes.iloc[0]),
        "real_model_slopes": markdown(["slope per doubling of tokens needed", "percent of the mean"], cells),
        "real_model_natural": interference.natural_check(natural),
        "unseen_distances_verdict": unseen_distances.verdict(gaps),
        "unseen_distances_sample": sample(gaps.iloc[0]),
    }


def of_reach() -> Numbers:
    """How far each pretrained model reads, plain and with YaRN, and the two verdicts."""
    items, table = told_facts()
    found: Numbers = {}
    columns: dict[str, list[str]] = {}
    for model, words, name in ((SMOLLM2, "smollm2", "SmolLM2"), (GEMMA, "gemma", "Gemma 3")):
        for rope, (_, of_rope) in reach.LOOKS.items():
            cells = []
            for template in (*reach.TEMPLATES, reach.TOGETHER):
                curve = reach.of_curve(table, model, rope, template)
                gap = reach.reach(curve)
                is_last = gap is not None and gap == curve.index.max()
                cells.append("-" if gap is None else f"{'≥ ' if is_last else ''}{gap:,}")
            columns[f"{name}, {of_rope}"] = cells
            found[f"reach_{rope.partition(':')[0]}_{words}"] = cells[-1]
        plain, with_yarn = (reach.of_curve(table, model, rope) for rope in (reach.PLAIN, reach.YARN))
        less, last = reach.reads_less_than_trained(table, model)
        kept = percent(reach.kept_at(plain, last))
        found |= {
            f"reach_kept_{words}": kept,
            f"reach_less_{words}": f"{less}: {kept}",
            f"reach_right_{words}": f"{float(plain['right_told'][last]):.0%}",
        }
        if readable := reach.yarn_makes_readable(items, table, model):
            word, gap, lead = readable
            kept = percent(reach.kept_at(with_yarn, gap))
            found[f"reach_readable_{words}"] = f"{word}: {kept}, {percent(lead, ' points')} more than plain"
            found[f"reach_unread_{words}"] = f"{gap:,}"
    rows = zip((*reach.TEMPLATES, reach.TOGETHER), *columns.values(), strict=True)
    found["reach"] = markdown(["reach, position IDs", *columns], rows)
    return found


def synthetic(folder: str) -> pd.DataFrame:
    """Accuracy in a folder of kept results."""
    return read_artefact(REFERENCE / folder, "synthetic_accuracy")


def of_synthetic_tasks() -> Numbers:
    """Functions of marked bits at ten times the trained length; exact match by position scheme."""
    functions = synthetic("length/functions")
    bits = rows_by(marked_bits.marked_bits(functions), "task", "size", "k")
    of_bits = [
        [words, *(f"{bits[f'sparse_{name}', 180, k]['exact_match']:.0%}" for k in range(1, 9))]
        for name, words in marked_bits.FUNCTIONS.items()
    ]
    found = {}
    for folder in ("results", "rotated"):
        cells = over_seeds(synthetic(f"synthetic/{folder}"))
        for row in cells[cells["sparsity"].isna()].to_dict("records"):
            star = "" if row["is_learnt"] else " \\*"
            key = folder, row["task"], row["positions"], row["size"]
            found[key] = percent(interval_of(row, "exact_match")) + star
    coupling = [
        [
            words,
            *(found.get(("results", task, scheme, size), "") for scheme in ("predicted", "coupled", "pose")),
        ]
        for words, task, size in (
            ("variable assignment, 18 assignments (3 times)", "variable_assignment", 18),
            ("parity with scratchpad, 30 bits (3 times)", "parity_scratchpad", 30),
            ("copy, 30 letters (3 times)", "copy", 30),
            ("addition, 24 digits (3 times)", "addition", 24),
        )
    ]
    rotary = [
        [words, found["results", task, "predicted", size], found["rotated", rotated, "predicted", size]]
        for words, task, rotated, size in (
            ("copy, 30 letters (3 times)", "copy", "copy", 30),
            ("copy, 40 letters (4 times)", "copy", "copy", 40),
            ("variable assignment, 18 (3 times)", "variable_assignment", "variable_assignment", 18),
            ("addition, 24 digits (3 times)", "addition", "addition_padded", 24),
        )
    ]
    return {
        "marked_bits": markdown(["function", *(f"k = {k}" for k in range(1, 9))], of_bits),
        "marked_bits_verdict": marked_bits.verdict(functions),
        "position_coupling": markdown(
            ["task, test size", "PPC", "coupled IDs given", "PoSE alone"], coupling
        ),
        "full_rotary": markdown(["task, test size, all PPC", "rotary_pct 0.25", "rotary_pct 1"], rotary),
    }


def of_theory() -> Numbers:
    """Squared error of sparse functional attention with local S*."""
    table = theory.by_length(read_artefact(REFERENCE / "theory" / "results", theory.STAGE))
    of_models = rows_by(table[table["length_ratio"] == 8], "model")
    rows = []
    for words, name, scale in (
        ("error in distribution × 10⁵", "in_distribution_error", 1e5),
        ("error at 8 L × 10³", "squared_error", 1e3),
        ("exponent of its growth from L to 8 L", "growth_exponent", 1),
    ):
        found = [interval_of(of_models[f"local-k{k}"], name) for k in (1, 2, 3)]
        cells = [f"{scale * x.estimate:.2f} [{scale * x.low:.2f}, {scale * x.high:.2f}]" for x in found]
        rows.append([words, *cells])
    return {"theory": markdown(["local S*", "k = 1", "k = 2", "k = 3"], rows)}


def of_contexts() -> Numbers:
    """Worth of the distant context, and the windows that keep most of it."""
    models = rows_by(losses.summarize_models(read_artefact(EVALUATED, "loss_differences")), "model")
    worth = {name: str(interval_of(row, "loss_difference")) for name, row in models.items()}
    novels = losses.summarize_models(
        read_artefact(REFERENCE / "study" / "novels" / "results", "loss_differences")
    )
    # The difference is short less long: what the longer context costs is its negative.
    harm = -novels[novels["model"].str.startswith("2m")]["loss_difference"]
    needed = losses.needed_context(read_artefact(EVALUATED, "length_losses"))
    row = rows_by(needed, "model", "criterion")[SELECTOR, "loss"]
    windows = [interval_of(row, f"window_{kept}") for kept in (90, 99)]
    cells = [f"{window.estimate:.0f} [{window.low:.0f}, {window.high:.0f}]" for window in windows]
    return {
        "worth_long": worth[SELECTOR],
        "worth_pose": worth["2m-short-pose-seed0"],
        "worth_contiguous": worth["2m-short-contiguous-seed0"],
        "beyond_every_length": f"{harm.min():.2f} to {harm.max():.2f}",
        "window_90": cells[0],
        "window_99": cells[1],
    }


@cache
def numbers() -> Numbers:
    """All of them."""
    of_models = of_few_tokens() | of_stricter_test() | of_length() | of_reach() | of_contexts()
    return of_models | of_synthetic_tasks() | of_theory()


def fill(text: str) -> str:
    """The page with every marked place filled; KeyError for a name that `numbers` lacks."""

    def of_place(found: re.Match[str]) -> str:
        content = numbers()[found[1]]
        # Markdown knows a table only on lines of its own.
        content = f"\n{content}\n" if content.startswith("|") else content
        return f"<!-- {found[1]} -->{content}<!-- /{found[1]} -->"

    # The backreference makes a place end at its own name.
    return re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", of_place, text, flags=re.DOTALL)


def draw() -> None:
    """Draw every figure of the pages into `REFERENCE`."""
    label = drawing.model_labels(STUDY, "sparse_context_losses")[SELECTOR]
    labels = drawing.model_labels(EVALUATED, "loss_differences")
    differences = losses.losses_beside_reference(read_artefact(EVALUATED, "length_losses"), SELECTOR, 16)
    errors = theory.by_length(read_artefact(REFERENCE / "theory" / "results", theory.STAGE))
    examples = read_artefact(REFERENCE / "length" / "cues", "synthetic_examples")
    pretrained = drawing.ModelLabel(
        SMOLLM2, drawing.OTHER_MODELS[0], "135 M parameters", train_context_length=8192
    )
    figures = {
        "real_model/loss_against_k": recovered_loss.loss_figure(
            curves()["SmolLM2 135 M"].query("k <= 256"), pretrained
        ),
        "real_model/mechanism": interference.mechanism_figure(interference.mechanism(interference_targets())),
        "real_model/reach": reach.reach_figure(told_facts()[1]),
        "study/loss_against_k": recovered_loss.loss_figure(curves()["2.3 M"], label),
        "evaluated/token_effects": recovered_loss.effects_figure(
            effects(), labels[SELECTOR], labels[EVALUATOR].text
        ),
        "evaluated/loss_against_context_length": losses.lengths_figure(
            differences, labels, [64, 256], SELECTOR
        ),
        "length/distance_or_number": unseen_distances.distance_or_number_figure(
            unseen_distances.distance_or_number(placed_targets())
        ),
        "length/marked_bits": marked_bits.figure_of(marked_bits.marked_bits(synthetic("length/functions"))),
        "length/cue_distances": cues.distances_figure(examples),
        "synthetic/cues": cues.cues_figure(synthetic("synthetic/cues")),
        f"theory/{theory.STAGE}": theory.errors_figure(errors),
    }
    for path, figure in figures.items():
        drawing.save(figure, REFERENCE, path, with_pdf=False)


if __name__ == "__main__":
    draw()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := fill(text)) != text:
            page.write_text(new, encoding="utf-8")
            sys.stdout.write(f"filled {page.relative_to(ROOT)}\n")
