"""Length interference in a real model: slopes on the tokens needed, tables, figures, the verdict.

The outcome of a target is h, the length interference: KL(p(.|near tokens) || p(.|another text's distant
tokens, near tokens)), mean over distant texts, with distant tokens at a distance that the model was never
trained on. (Trained is not read: reach.py measures how far a stated fact is read.) The predictor is
`mean_log2_k` within the near tokens. Three slopes per doubling:

    ratio   log E[h]       ~ mean_log2_k + controls     Poisson quasi-likelihood
    nats    h / mean(h)    ~ mean_log2_k + controls     least squares
    share   h / stake, over its mean                    least squares; stake: KL(near || its last 4 tokens)

Controls: natural splines of the entropy, of the logarithms of the total effect, of the stake and of h at a
trained distance; the log frequency of the token, the loss, the source. Clusters are texts, with CR2 and
Student's interval (`slopes.Design`; of the Poisson regression at its last weighted step). Plan and rule:
analysis/LOG.md.

Shapes: T targets, C controls.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from statsmodels.genmod import families
from statsmodels.genmod.generalized_linear_model import GLM
from statsmodels.stats.multitest import multipletests

from sparsity_length.figures import drawing
from sparsity_length.figures.read import (
    interval_over_documents,
    mean_columns,
    rows_by,
    rows_where,
    sample_counts,
)
from sparsity_length.figures.slopes import KEYS, RULE, SPARSITY, Design, Row, controls_of, full_rank, single
from sparsity_length.measuring.settings import NEAR, Placement
from sparsity_length.results.read import Results
from sparsity_length.results.schemas import DIVERGENCE
from sparsity_length.results.statistics import Interval, decided
from sparsity_length.text.folder import TokenizedData, training_token_counts

# Distant tokens stand at the IDs 0 to 511. Distances to them run from 10,241 to 11,263 here, none of which
# training to 8,192 has seen; from 7,169 to 8,191 in the control, all of which it has.
PRIMARY = "swap:512@10752"
"""The placement that decides: at an unseen distance."""
TRAINED = "swap:512@7680"
"""The negative control: at a trained one, at which a stated fact is hardly read (reach.py)."""
UNSEEN = "swap:512@11776"
READ = ("swap:512@2048", "swap:512@4096")
"""At distances at which a told fact is read."""
STAKE = "last:4"
RATIO = "ratio"
NATS = "nats"
SHARE = "share"
KINDS = (RATIO, NATS, SHARE)
SMALLEST_EFFECT = 0.05
"""SESOI: 5% of the mean h per doubling."""
LEAST_EFFECT = 0.05
"""Total effect within the near context below which `mean_log2_k` says little, nats."""
LEAST_RISE = 0.1
LEAST_RANKS = 0.6
"""Natural check: rise of the own loss (nats) and rank correlation at which the short version decides."""
SPLINES = ("entropy", "log_total_effect", "log_stake", "log_trained")
"""Controls whose effect need not be straight."""
CONTROLS = (*SPLINES, "log_token_count", "loss", "source")


def interference_targets(measured: Path, needed: Path | None, data: TokenizedData) -> pd.DataFrame:
    """One row per target: everything that the slopes need, and what each placement does to it, nats.

    Args:
        measured: results of length_interference.py; one model.
        needed: results of influential_tokens.py of the same targets; None: no tokens needed.
        data: the texts; where each is from, its `url`, becomes `source`.

    Returns:
        document_id, target_position, source, loss, entropy (near tokens alone), log_token_count; a column a
        placement and source of the distant text, "swap:512@10752 c4": KL, of own text's the loss; and, with
        `needed`, mean_log2_k and total_effect, NaN of texts that were not measured.
    """
    rows = Results(measured).frame("length_interference")
    source_of = {document.document_id: document.url for document in data.evaluation_documents()}
    near = rows[rows["placement"] == NEAR].set_index(KEYS)
    counts = training_token_counts(data)[near["target_token_id"]]
    targets = near[["loss", "entropy"]].assign(log_token_count=np.log(counts + 1.0))
    # Own text should change the prediction, so its KL is no sign of harm; its loss is.
    rows["value"] = rows["loss"].where(rows["placement"].str.startswith("own"), rows["divergence"])
    distant = rows["distant_document_id"].map(source_of).fillna("")
    rows["condition"] = (rows["placement"] + " " + distant).str.strip()
    # A distant text of the same source twice would be two rows a cell: the mean of them.
    targets = targets.join(rows[rows["placement"] != NEAR].pivot_table("value", KEYS, "condition"))
    if needed is not None:
        only = {"rule": [RULE], "criterion": [DIVERGENCE]}
        sparsity = Results(needed).frame("dependency_sparsity", only=only)
        of_kl = sparsity.set_index(KEYS)[[SPARSITY, "gain"]]
        targets = targets.join(of_kl.rename(columns={"gain": "total_effect"}))
    targets = targets.reset_index()
    targets.insert(2, "source", targets["document_id"].map(source_of))
    # A text that served as a distant one is never its own distant text, and lacks cells that others have.
    return targets[~targets["document_id"].isin(rows["distant_document_id"])].reset_index(drop=True)


def mean_interference(targets: pd.DataFrame, placement: str) -> pd.Series:
    """H of each target, nats: the mean over the distant texts of one placement."""
    return targets[[name for name in targets if str(name).split(" ")[0] == placement]].mean(axis=1)


def where_read(targets: pd.DataFrame) -> tuple[str, dict[str, Interval]]:
    """Decide whether other text disturbs less at distances that are read than at an unseen one.

    Returns:
        "supported" if the mean interference of both placements of `READ` is below a quarter of that of
        `UNSEEN`, intervals included; "refuted" if that of either is above half of it; else "inconclusive".
        And these ratios of means, by placement.
    """
    means = pd.DataFrame({placement: mean_interference(targets, placement) for placement in (*READ, UNSEEN)})
    known = means.dropna()  # texts that were measured at all of them
    documents = targets["document_id"][known.index]
    ratios = {name: interval_over_documents(documents, known[name], known[UNSEEN]) for name in READ}
    word = decided(
        supported=all(ratio.high < 1 / 4 for ratio in ratios.values()),
        refuted=any(ratio.low > 1 / 2 for ratio in ratios.values()),
    )
    return word, ratios


def with_outcomes(targets: pd.DataFrame) -> pd.DataFrame:
    """The columns that `slopes` takes: h at both distances, the stake, and logarithms of controls."""
    columns = {name: mean_interference(targets, name) for name in (PRIMARY, TRAINED)}
    found = targets.assign(**columns, stake=mean_interference(targets, STAKE))
    logs = {"log_total_effect": "total_effect", "log_stake": "stake", "log_trained": TRAINED}
    # The floor keeps logarithms finite if a KL is 0, or below it by rounding.
    return found.assign(**{name: np.log(found[of].clip(lower=1e-6)) for name, of in logs.items()})


def mechanism(targets: pd.DataFrame) -> pd.DataFrame:
    """Length interference of each placement and source of the distant text: mean over targets, nats."""
    rows = list[Row]()
    for name in [name for name in map(str, targets) if name.startswith("swap:")]:
        placement, source = name.split(" ")
        found = Placement.parse(placement)
        known = targets.dropna(subset=[name])  # a text that is a distant one of this placement has none
        place: Row = {"num_distant": found.num_distant, "span": found.span, "near_start": found.near_start}
        numbers = mean_columns(known.rename(columns={name: "interference"}), "interference")
        rows.append({**place, "distant_text": source, **numbers, **sample_counts(known)})
    return pd.DataFrame(rows).sort_values(["num_distant", "near_start", "distant_text"], ignore_index=True)


def slope(outcome: str, kind: str, targets: pd.DataFrame, controls: Sequence[str] = CONTROLS) -> Row:
    """Slope of one kind on `mean_log2_k`, with its interval and p-value, as columns.

    Args:
        outcome: a column, nats, from 0.
        kind: of `KINDS`.
        targets: columns mean_log2_k, document_id, stake, those of the controls, and the outcome's.
        controls: what is held constant; not h at the trained distance if it is the outcome.
    """
    h_T = targets[outcome].to_numpy(dtype="float64")
    regressors_T1 = targets[[SPARSITY]].to_numpy()
    # The columns of each spline sum to 1, as do the sources' dummies; `full_rank` drops what is redundant.
    controls_TC = controls_of(targets, controls, SPLINES)
    weights_T = None
    # Quasi-likelihood: only the mean has to be right, and zeros do no harm, as log h is never taken.
    if kind == RATIO:
        # The last step of the Poisson regression is a least squares: its weights and its working response.
        columns_TC = full_rank(np.column_stack([regressors_T1, controls_TC]))
        # Only at convergence does the last step stand for the whole fit, hence the tight tolerance.
        weights_T = GLM(h_T, columns_TC, family=families.Poisson()).fit(maxiter=50, tol=1e-12).mu
        h_T = np.log(weights_T) + (h_T - weights_T) / weights_T
    else:
        h_T = h_T / targets["stake"].to_numpy() if kind == SHARE else h_T
        # Slopes become shares of the mean per doubling, the scale of `SMALLEST_EFFECT`.
        h_T = h_T / h_T.mean()
    design = Design(regressors_T1, controls_TC, targets["document_id"].to_numpy(), weights_T)
    return single(design.least_squares(pd.DataFrame({"h": h_T})))


def with_predictor(targets: pd.DataFrame) -> pd.DataFrame:
    """The targets that have a `mean_log2_k`, and enough total effect for it."""
    return targets[targets["total_effect"] >= LEAST_EFFECT].dropna(subset=[SPARSITY])


def slopes(targets: pd.DataFrame, primary: str = PRIMARY, trained: str = TRAINED) -> pd.DataFrame:
    """All rows that decide: variant, kind, slope with interval, p_value, holm_p_value as planned, counts.

    Args:
        targets: as `slope` takes them, with `total_effect` (nats); those below `LEAST_EFFECT` are left out.
        primary, trained: columns of h at the unseen distance that decides, and at a trained one, the negative
            control.
    """
    known = with_predictor(targets).dropna(subset=[primary, trained])
    # An effect of one end alone, such as a step at the lowest eighth, is no slope.
    low, high = known[SPARSITY].quantile([1 / 8, 7 / 8])
    variants = [
        *(("as planned", kind, known, primary, CONTROLS) for kind in KINDS),
        ("lowest eighth left out", RATIO, known[known[SPARSITY] > low], primary, CONTROLS),
        ("highest eighth left out", RATIO, known[known[SPARSITY] < high], primary, CONTROLS),
        ("negative control", RATIO, known, trained, [name for name in CONTROLS if name != "log_trained"]),
    ]
    table = pd.DataFrame(
        {"variant": variant, "kind": kind, **slope(outcome, kind, of, controls), **sample_counts(of)}
        for variant, kind, of, outcome, controls in variants
    )
    # Only the three planned rows are tested; the series is shorter than the table, and the others get NaN.
    table["holm_p_value"] = pd.Series(multipletests(table["p_value"][: len(KINDS)], method="holm")[1])
    return table


def verdict(table: pd.DataFrame) -> str:
    """Decide by the rule written down before: "supported", "refuted" or "inconclusive".

    Supported: ratio and nats above 0 by Holm, the share not below 0, both shape rows above 0; length-specific
    if the ratio lies above the negative control's, too. Refuted: all three end below the SESOI, or
    ratio and nats are below 0 by Holm (two verdicts in the log). Inconclusive: else.
    """
    rows = rows_by(table, "variant", "kind")
    planned = [rows["as planned", kind] for kind in KINDS]
    ratio, nats, share = planned
    shapes = [rows[f"{end} eighth left out", RATIO] for end in ("lowest", "highest")]
    is_clear = ratio["holm_p_value"] <= 0.05 and nats["holm_p_value"] <= 0.05
    # The share need not be significant itself; it must not contradict.
    has_shape = share["slope_high"] >= 0 and all(row["slope_low"] > 0 for row in shapes)
    is_opposite = is_clear and ratio["slope"] < 0 and nats["slope"] < 0
    is_small = all(row["slope_high"] < SMALLEST_EFFECT for row in planned)
    word = decided(
        supported=is_clear and ratio["slope"] > 0 and nats["slope"] > 0 and has_shape,
        refuted=is_opposite or is_small,
    )
    # Disjoint intervals, usually stricter than a test of the difference.
    is_specific = ratio["slope_low"] > rows["negative control", RATIO]["slope_high"]
    return f"{word}, length-specific" if word == "supported" and is_specific else word


def natural_check(targets: pd.DataFrame) -> str:
    """Tell whether the short version stands for texts of full length, by the rule of the plan.

    Own loss rises by more than 0.1 nats from 8,192 to 12,288 tokens, and targets rank alike (Spearman 0.6 or
    more) behind 512 distant tokens and behind all.
    """
    # The near tokens begin at these IDs, and 512 of them follow: 12,288 and 8,192 in all.
    rise = interval_over_documents(targets["document_id"], targets["own:11776"] - targets["own:7680"])
    ranks = {}
    levels = []
    for start in (10240, 11776):
        of_512, of_all = (mean_interference(targets, f"swap:{name}") for name in (f"512@{start}", start))
        ranks[start + 512] = of_all.corr(of_512, "spearman")
        levels.append((f"{of_512.mean():.2f}", f"{of_all.mean():.2f}"))
    stands = rise.estimate > LEAST_RISE and min(ranks.values()) >= LEAST_RANKS
    of_few, of_many = (" and ".join(cost) for cost in zip(*levels, strict=True))
    words = ", ".join(f"at {length:,} tokens {rank:.2f}" for length, rank in ranks.items())
    return (
        f"On the text itself, loss is {rise} nats higher at 12,288 tokens than at 8,192. Targets rank alike"
        f" behind 512 and behind all distant tokens (rank correlation {words}), so the shortened design is"
        f" {'a fair' if stands else 'no fair'} proxy for which targets of natural long contexts suffer. How"
        f" much differs: 512 distant tokens cost {of_few} nats, all {of_many}."
    )


SOURCES = {"c4": "C4", "wikipedia": "Wikipedia", "novels": "novel"}
"""Sources of distant texts, and how the figure calls them."""


def mechanism_figure(table: pd.DataFrame) -> Figure:
    """Interference by distance (512 tokens), and by the number of tokens at one unseen distance."""
    figure, axes = drawing.panels(2, 2.8, sharey=False)
    # Squeezed distant tokens have another span than their number.
    at_512 = rows_where(table, num_distant=512, span=512)
    at_far = rows_where(table, near_start=11776)
    for ax, rows, column in ((axes[0], at_512, "near_start"), (axes[1], at_far, "num_distant")):
        for (source, words), color in zip(SOURCES.items(), drawing.graded(len(SOURCES)), strict=True):
            line = rows_where(rows, distant_text=source).sort_values(column)
            drawing.draw_line(ax, line[column], line, "interference", drawing.solid(color), words)
    by_number = table.groupby(["near_start", "num_distant"])["interference"].mean()
    # Its last point is 11,776 tokens squeezed into these 7,680 IDs.
    trained = by_number[Placement.parse(TRAINED).near_start].reset_index()
    look = drawing.hollow(drawing.solid(drawing.GREY))
    drawing.draw_line(axes[1], trained["num_distant"], trained, "interference", look, "near from\n7,680")
    drawing.length_axis(axes[1], [1, 16, 256, 4096], "distant tokens")
    for ax in axes:
        ax.set_ylim(bottom=0)
    drawing.shade(axes[0], 0, 8192 - 512)  # where the last of 512 near tokens has a trained ID
    axes[0].text(8350, axes[0].get_ylim()[1], "trained to 8,192", va="top", fontsize=8.5, color=drawing.GREY)
    axes[0].set(
        title="512 distant tokens",
        xlabel="position ID where the near tokens begin",
        ylabel="interference (KL, nats)",
        xlim=(0, None),
    )
    axes[0].xaxis.set_major_formatter("{x:,.0f}")
    axes[1].set(title="near tokens from ID 11,776 (unseen distances)")
    drawing.put_title(
        figure,
        "Distance and number interact in a 135M model: at unseen distances one token of another text costs"
        f" {by_number[11776, 1]:.2f} nats, 1,536 cost {by_number[11776, 1536]:.1f}; at trained IDs"
        f" {trained['num_distant'].iloc[-1]:,.0f} cost {trained['interference'].iloc[-1]:.2f}",
        drawing.sample_size(table),
        drawing.BARS,
        "512 near tokens behind distant tokens of another text (C4, Wikipedia, a novel); exploratory",
    )
    return figure


TARGETS_FILE = "interference_targets.parquet"
NATURAL_FILE = "natural_targets.parquet"


def make_tables(
    interference: list[Path], needed: Path | None, natural: Path | None, data: Path, out: Path
) -> None:
    """Write the kept tables; of further folders of `interference` the columns that the first lacks."""
    texts = TokenizedData.open(data)
    out.mkdir(parents=True, exist_ok=True)
    targets = interference_targets(interference[0], needed, texts)
    for further in interference[1:]:
        more = interference_targets(further, None, texts).set_index(KEYS)
        targets = targets.join(more[more.columns.difference(targets.columns, sort=False)], KEYS)
    targets.to_parquet(out / TARGETS_FILE, index=False)
    if natural is not None:
        interference_targets(natural, None, texts).to_parquet(out / NATURAL_FILE, index=False)
