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
    recovered_loss,
    synthetic_tasks,
    theory,
    unseen_distances,
)
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

    by_number = [
        [f"{number:,}", between_texts(number, 7680), between_texts(number, 11776)]
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
            ["distant tokens", "at trained distances", "at unseen distances"], by_number
        ),
        "interference_unseen": between_texts(512, 11776, 1),
        "interference_squeezed": str(interval_of(squeezed, "interference")),
        "real_model_verdict": interference.verdict(slopes),
        "real_model_sample": sample(slopes.iloc[0]),
        "real_model_slopes": markdown(["slope per doubling of tokens needed", "percent of the mean"], cells),
        "real_model_natural": interference.natural_check(natural),
        "unseen_distances_verdict": unseen_distances.verdict(gaps),
        "unseen_distances_sample": sample(gaps.iloc[0]),
    }


def synthetic(folder: str) -> pd.DataFrame:
    """Accuracy in a folder of kept results."""
    return read_artefact(REFERENCE / folder, "synthetic_accuracy")


def of_synthetic_tasks() -> Numbers:
    """Functions of marked bits at ten times the trained length; exact match by position scheme."""
    functions = synthetic("length/functions")
    learned = functions[functions["is_learnt"]]

    def by_k(words: str, accuracy: pd.DataFrame, name: str = "parity") -> list[str]:
        return [words, *(f"{marked_bits.by_seed(accuracy, name, [k]).mean():.0%}" for k in range(1, 9))]

    of_or = marked_bits.by_seed(learned, "or", [8])
    of_bits = [
        *(by_k(words, learned, name) for name, words in marked_bits.FUNCTIONS.items()),
        by_k("parity, the seed left out", functions[~functions["is_learnt"]]),
    ]
    leads = [
        [
            words,
            *(percent(marked_bits.or_minus_parity(accuracy, ks), "") for accuracy in (learned, functions)),
        ]
        for words, ks in {**{f"k = {k}": [k] for k in range(1, 9)}, "k = 5 to 8": marked_bits.MANY}.items()
    ]
    found = {}
    for folder in ("results", "rotated"):
        cells = synthetic_tasks.over_seeds(synthetic(f"synthetic/{folder}"))
        for row in cells[cells["sparsity"].isna()].to_dict("records"):
            star = "" if row["is_learnt"] else " \\*"
            key = folder, row["task"], row["positions"], row["size"]
            seeds = "" if row["num_seeds"] == 3 else f", {drawing.counted(row['num_seeds'], 'seed')}"
            found[key] = percent(interval_of(row, "exact_match")) + seeds + star
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
            ("addition, 24 digits (3 times); right: `addition_padded`", "addition", "addition_padded", 24),
        )
    ]
    return {
        "marked_bits": markdown(["function", *(f"k = {k}" for k in range(1, 9))], of_bits),
        "marked_bits_verdict": marked_bits.verdict(functions),
        "or_minus_parity": markdown(["OR minus parity, points", "seeds that learned it", "all seeds"], leads),
        "or_eight": percent(Interval(of_or.mean(), of_or.min(), of_or.max())),
        "copy_4_times": found["rotated", "copy", "predicted", 40],
        "ppc_10_bits": found["rotated", "parity_scratchpad", "predicted", 10],
        "pose_10_bits": found["rotated", "parity_scratchpad", "pose", 10],
        "position_coupling": markdown(
            ["task, test size", "PPC", "coupled IDs given", "PoSE alone"], coupling
        ),
        "full_rotary": markdown(["task, test size, all PPC", "rotary_pct 0.25", "rotary_pct 1"], rotary),
    }


def of_dependencies() -> Numbers:
    """What k beyond K_train costs with a scratchpad, and what predicted position IDs depend on."""
    accuracy = synthetic("synthetic/beyond_k")
    cells = rows_by(accuracy, "task", "size", "sparsity")
    ks = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16)
    table = [
        [
            words,
            *(f"{cells[task, size, k]['exact_match']:.0%}" if (task, size, k) in cells else "" for k in ks),
        ]
        for words, task, size in (
            ("parity with scratchpad, 10 bits", "sparse_parity_scratchpad", 20),
            ("30 bits", "sparse_parity_scratchpad", 60),
            ("variable assignment, 6 assignments", "variable_assignment_hops", 6),
            ("18 assignments", "variable_assignment_hops", 18),
        )
    ]
    bits, hops = (accuracy[accuracy["task"] == task] for task in sorted(accuracy["task"].unique()))
    found = read_artefact(REFERENCE / "synthetic" / "further", "found_id_dependencies")
    first = found.query("rule == @SELECTED and rank == 1")
    # A restated assignment is three targets: left side, "=", right side.
    effects_of = first.groupby(["ablation", first["target_index"] % 3])["effect"].mean()
    masked = first[first["ablation"] == "mask"]
    return {
        "beyond_k": markdown(["exact match", *(f"k = {k}" for k in ks)], table),
        "beyond_k_bits": str(synthetic_tasks.beyond(bits, 16, 4)),
        "beyond_k_hops": str(synthetic_tasks.beyond(hops, 16, 3, per_hop=True)),
        "ids_found": f"{masked['is_dependency'].mean():.0%} of {len(masked):,}",
        "ids_masked": f"{effects_of['mask'].min():.1f} to {effects_of['mask'].max():.1f}",
        "ids_swapped": f"{effects_of['substitute'][0]:.1f}",
        "ids_swapped_within": f"{effects_of['substitute'].loc[1:].max():.3f}",
    }


def of_theory() -> Numbers:
    """Squared error of sparse functional attention with local S*."""
    kept, varied = (
        read_artefact(REFERENCE / "theory" / name, theory.STAGE) for name in ("results", "varied")
    )
    table = pd.concat([theory.by_length(kept), theory.by_length(varied)])
    of_models = rows_by(table[table["length_ratio"] == 8], "model")

    def errors_of(header: Sequence[str], models: Sequence[str]) -> str:
        rows = []
        for words, name, scale in (
            ("error in distribution × 10⁵", "in_distribution_error", 1e5),
            ("error at 8 L × 10³", "squared_error", 1e3),
            ("exponent of its growth from L to 8 L", "growth_exponent", 1),
        ):
            found = [interval_of(of_models[model], name) for model in models]
            cells = [f"{scale * x.estimate:.2f} [{scale * x.low:.2f}, {scale * x.high:.2f}]" for x in found]
            rows.append([words, *cells])
        return markdown(header, rows)

    return {
        "theory": errors_of(["local S*", "k = 1", "k = 2", "k = 3"], ["local-k1", "local-k2", "local-k3"]),
        "theory_varied": errors_of(
            ["local S*, k = 2", "L_local = 4", "L_local = 8", "L_local = 16"],
            ["local_4-k2", "local-k2", "local_16-k2"],
        ),
        "theory_all_keys": percent(interval_of(of_models["local_all_keys-k2"], "error_rate")),
    }


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
    of_models = of_few_tokens() | of_stricter_test() | of_length() | of_contexts()
    return of_models | of_synthetic_tasks() | of_dependencies() | of_theory()


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
        "length/marked_bits": marked_bits.figure_of(synthetic("length/functions")),
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
