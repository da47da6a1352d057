"""Fill the numbers and draw the figures of the pages: `python -m sparsity_length.figures.pages`.

A page marks a place by `<!-- NAME -->` … `<!-- /NAME -->`. What `numbers` gives for this name replaces what
stands between, a table on lines of its own. All is from the kept results, in analysis/reference. A test says
that no number would change. Numbers of finished checks stand on the pages without marks, beside the commit
that made them.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from sparsity_length.figures import (
    beyond,
    cues,
    distance,
    distance_or_number,
    drawing,
    interference,
    losses,
    marked_bits,
    olmo_schemes,
    reach,
    recovered_loss,
    schemes,
    synthetic_tasks,
    theory,
)
from sparsity_length.figures.read import (
    TARGET,
    Row,
    interval_of,
    interval_over_documents,
    read_sparse_losses,
    rows_by,
    rows_where,
)
from sparsity_length.results.read import Results
from sparsity_length.results.statistics import (
    Interval,
    difference_of_ratios,
    interval_of_statistic,
    ratio_of_sums,
)

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "analysis" / "reference"
PAGES = (ROOT / "README.md", ROOT / "analysis" / "README.md", ROOT / "analysis" / "SYNTHETIC.md")
STUDY = REFERENCE / "study" / "results"
EVALUATED = REFERENCE / "evaluated" / "results"
TRIED = REFERENCE / "tried" / "results"
SMOLLM2 = "SmolLM2-135M-Instruct"
GEMMA = "Gemma-3-270M"
SELECTOR = "2m-long-seed0"
EVALUATOR = "2m-long-seed1"
SELECTED = "leave_one_out_divergence"
CACHE_POLICIES = {
    "caches_choosing": (SELECTED, "snapkv", "attention"),
    "caches_others": ("quest", "streaming_llm", "recency"),
}
OR_MODELS = 0.95
"""Least fraction of a model's answers to several bits that are OR's, if it is told to answer OR."""
CHANGES = ["variant", "k", "criterion"]
"""What may differ between rows of one headline."""
Numbers = dict[str, str]
"""Name of a place -> what stands there, Markdown."""


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(map(str, line)) + " |" for line in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def percent(share: Interval, unit: str = "%") -> str:
    """A share with its interval or range: "94% [91, 97]"."""
    # Adding 0 makes -0 a plain 0.
    ends = [f"{np.round(100 * end) + 0.0:.0f}" for end in (share.estimate, share.low, share.high)]
    return f"{ends[0]}{unit} [{ends[1]}, {ends[2]}]"


def sample(row: Row | pd.Series, between: str = " of ") -> str:
    """The size of a row's sample: "192 targets of 24 texts"."""
    return f"{row['num_targets']:,} targets{between}{row['num_documents']} texts"


@cache
def few_tokens(model: str) -> pd.DataFrame:
    """Losses of a pretrained model with k tokens, nats: its rows of `sparse_context_losses`."""
    path = REFERENCE / "real_model" / "few_tokens.parquet"
    return pd.read_parquet(path, filters=[("model", "==", model)])


@cache
def sparse_losses() -> dict[str, pd.DataFrame]:
    """Model or size -> losses with k tokens, nats: rows of `sparse_context_losses`."""
    sparse = {"SmolLM2 135 M": few_tokens(SMOLLM2), "Gemma 3 270 M": few_tokens(GEMMA)}
    for size, model in (("2.3 M", SELECTOR), ("0.34 M", "300k-long-seed0")):
        sparse[size] = read_sparse_losses(STUDY, only={"model": [model]})
    return sparse


@cache
def curves() -> dict[str, pd.DataFrame]:
    """Model or size -> loss against k."""
    return {size: recovered_loss.loss_curves(of_size) for size, of_size in sparse_losses().items()}


@cache
def effects() -> pd.DataFrame:
    """Recovery of another seed's prediction by the tokens that one seed selected."""
    sparse = read_sparse_losses(TRIED, only={"model": [SELECTOR]}, every_evaluator=True, every_k=True)
    return recovered_loss.token_effects(sparse[sparse["evaluator"] == EVALUATOR])


@cache
def robustness() -> pd.DataFrame:
    """Headlines by every variant (`sparsity robustness`); k is 0 and criterion "" of those without."""
    return pd.read_parquet(REFERENCE / "robustness.parquet").fillna({"k": 0, "criterion": ""})


def robust(
    headline: str, model: str, k: int = 16, criterion: str = "loss", variant: str = "as published"
) -> str:
    """One of its intervals: a fraction in percent, a lead in points."""
    rows = rows_by(robustness(), "headline", "model", "k", "criterion", "variant")
    found = interval_of(rows[headline, model, k, criterion, variant], "estimate")
    is_in_points = headline.startswith(("lead", "slope of the share")) and model != distance.UNSEEN
    unit = " points" if is_in_points else "%"
    return percent(found, unit)


def of_robustness() -> Numbers:
    """Headlines, the range of their variants with one change each, and which of these disagree."""
    lines = []
    groups = robustness().groupby(["headline", "model"])
    for key, words in ROBUST.items():
        rows = groups.get_group(key)
        shown = rows[rows["is_headline"]].iloc[0]
        num_changes = (rows[CHANGES] != shown[CHANGES]).sum(axis=1)
        changed = rows[(num_changes == 1) & (rows["variant"] != "negative control")]
        failed = changed[~changed["holds"]]
        what = (
            # A placement stands for its three distant texts, which agree.
            failed["variant"]
            .str.replace(r"^swap:(\S+) .*", r"\1", regex=True)
            .replace("without the two most influential texts", "without two texts")
            .where(failed["k"] == shown["k"], failed["k"].map("{:.0f}".format))
            .where(failed["criterion"] == shown["criterion"], "by the KL")
        )
        is_k = failed["k"] != shown["k"]
        names = list(dict.fromkeys(what[~is_k]))
        if is_k.any():
            names.append("k = " + ", ".join(what[is_k]))
        values = [shown["estimate"], shown["estimate_low"], shown["estimate_high"]]
        values += changed["estimate"].agg(["min", "max"]).tolist()
        number = ".2f" if words.endswith("nats") else ".0%"
        if key[0] == "accuracy":  # Student's interval knows no bounds
            values = np.clip(values, 0, 1).tolist()
        ends = [f"{round(value, 2) + 0.0:{number}}" for value in values]
        disagreeing = f"{len(failed)}/{len(changed)}{': ' if names else ''}{', '.join(names)}"
        lines.append([words, "{} [{}, {}]".format(*ends[:3]), "{} to {}".format(*ends[3:]), disagreeing])
    return {"robustness": markdown(["headline", "as published", "variants", "variants that disagree"], lines)}


ROBUST = {
    ("recovered fraction", "SmolLM2 135 M"): "SmolLM2: 16 tokens recover",
    ("lead over recency", "SmolLM2 135 M"): "SmolLM2: lead over recency",
    ("lead over the null baseline", "SmolLM2 135 M"): "SmolLM2: lead over null",
    ("recovered fraction", "Gemma 3 270 M"): "Gemma: 16 tokens recover",
    ("lead over recency", "Gemma 3 270 M"): "Gemma: lead over recency",
    (
        "lead over recency, difference",
        "SmolLM2 135 M minus Gemma 3 270 M",
    ): "this lead, SmolLM2 minus Gemma",
    ("recovered fraction", "2.3 M"): "2.3 M: 16 tokens recover",
    ("lead over recency", "2.3 M"): "2.3 M: lead over recency",
    ("slope of interference", "ratio"): "interference slope: ratio",
    ("slope of interference", "nats"): "interference slope: nats / mean",
    ("slope of interference", "share"): "interference slope: share of maximal loss",
    ("slope of the share kept", "trained"): "share kept at 2,048: slope",
    ("slope of the share kept", "unseen"): "fall, 4,096 to 9,216: slope",
    ("slope of the share kept", "readable"): "YaRN's gain at 9,216: slope",
    ("accuracy", "OR at 180 tokens"): "OR of 8 bits",
    ("accuracy", "parity at 180 tokens"): "parity of 8 bits",
    ("fall of accuracy", "parity learned, 180 tokens"): "parity learned: fall from 1, 2 to 5 to 8 bits",
    ("accuracy", "PPC: copy, 40 letters, rotary_pct 1"): "PPC: copy, 40 letters, rotary_pct 1",
    ("accuracy", "PPC: copy, 40 letters"): "PPC: copy, 40 letters, rotary_pct 0.25",
    ("effect of a told fact", "SmolLM2-135M-Instruct"): "SmolLM2: fact kept at 7,168",
    ("effect of a told fact", "Gemma-3-270M"): "Gemma: fact kept at 30,720",
    ("interference", "SmolLM2 135 M"): "512@11776 minus 11776@7680 (one novel's), nats",
}
"""Headline and model -> what the page calls them."""


def within_16(rows: pd.DataFrame) -> str:
    """Share of targets of which 16 selected tokens, or fewer, recover 90% of the KL."""
    few = rows_where(rows, rule=SELECTED, distant_context="own").query("k <= 16")
    is_recovered = few["sparse_context_divergence"] <= 0.1 * few["short_context_divergence"]
    targets = few.assign(enough=is_recovered).groupby(TARGET)["enough"].any().reset_index()
    return percent(interval_over_documents(targets["document_id"], targets["enough"]))


def of_few_tokens() -> Numbers:
    """The paper's verdict on both pretrained models, and what k tokens recover of each model, by rule."""
    smollm2 = few_tokens(SMOLLM2)
    gemma = few_tokens(GEMMA)
    same_texts = smollm2[smollm2["document_id"].isin(gemma["document_id"])]
    null = rows_where(smollm2, distant_context="other_document")
    null_texts = smollm2[smollm2["document_id"].isin(null["document_id"])]
    by_loss = {
        name: rows_by(recovered_loss.token_effects(rows).query("criterion == 'loss'"), "rule", "k")
        for name, rows in (("smollm2", smollm2), ("gemma", gemma))
    }
    leads = recovered_loss.amounts_beside(smollm2, "recency").groupby("document_id")["lead"].sum()
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
        cells = ["" if row is None else percent(interval_of(row, "recovered_share")) for row in found]
        table.append([words, *cells])
    # 7% of the distant tokens: 64 of some 960 in pretrained models, 16 of some 230 in those trained here.
    at_equal = [
        rows[SELECTED, "own", k]["recovered_share"]
        for rows, k in zip(of_sizes, (64, 64, 16, 16), strict=True)
    ]
    large, other, *_ = curves()
    without_two = "without the two most influential texts"
    return {
        f"attention_{name}": f"{rows['attention', 16]['share'] / rows[SELECTED, 16]['share']:.0%}"
        for name, rows in by_loss.items()
    } | {
        "paper_verdict": recovered_loss.paper_verdict(smollm2)[0],
        "paper_verdict_gemma": recovered_loss.paper_verdict(gemma)[0],
        "paper_16": robust("recovered fraction", large),
        "paper_64": robust("recovered fraction", large, 64),
        "paper_256": robust("recovered fraction", large, 256),
        "paper_16_gemma": robust("recovered fraction", other),
        "paper_16_null_texts": percent(recovered_loss.paper_verdict(null_texts)[1]),
        "paper_16_same_texts": percent(recovered_loss.paper_verdict(same_texts)[1]),
        "paper_lead": robust("lead over recency", large),
        "paper_lead_gemma": robust("lead over recency", other),
        "paper_lead_gemma_4": robust("lead over recency", other, 4),
        "paper_lead_gemma_8": robust("lead over recency", other, 8),
        "paper_difference": robust("lead over recency, difference", f"{large} minus {other}"),
        "paper_16_without_two": robust("recovered fraction", large, variant=without_two),
        "paper_lead_without_two": robust("lead over recency", large, variant=without_two),
        "paper_lead_of_two": f"{leads.nlargest(2).sum() / leads.sum():.0%}",
        "paper_over_null": robust("lead over the null baseline", large),
        "paper_over_null_8": robust("lead over the null baseline", large, 8),
        "paper_over_null_64": robust("lead over the null baseline", large, 64),
        "paper_over_null_kl": robust("lead over the null baseline", large, criterion="divergence"),
        "paper_at_equal": ", ".join(f"{share:.0%}" for share in at_equal),
        "paper_within_16": within_16(smollm2),
        "paper_within_16_gemma": within_16(gemma),
        "paper_sample": sample(curves()[large].iloc[-1]),
        "paper_sample_gemma": sample(curves()[other].iloc[-1]),
        "paper_null_sample": sample(of_sizes[0][SELECTED, "other_document", 16]),
        "paper_attention": percent(interval_of(by_loss["smollm2"]["attention", 16], "share")),
        "paper_attention_no_sink": percent(interval_of(by_loss["smollm2"]["attention_no_sink", 16], "share")),
        "recovered_fraction": markdown(["recovered fraction of the gain, 16 tokens", *curves()], table),
    }


def of_stricter_test() -> Numbers:
    """Recovery of the KL to another seed by k tokens, and the predictions for which k are enough."""
    rows = rows_by(effects().query("criterion == 'divergence'"), "rule", "k")
    ks = (1, 4, 16)
    table = [
        [
            "recovered fraction of the total effect",
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
    targets = Results(TRIED).frame("dependency_sparsity", only=only)

    def enough(k: int, least: float, most: float) -> str:
        # "left": 0.1 counts, 0.5 does not; 999 stands for no upper end.
        between = targets[targets["gain"].between(least, most, "left")]
        # Null if no studied k reaches 90%: more than any k that is asked about.
        share = interval_over_documents(between["document_id"], between["k_90"].fillna(999) <= k)
        return f"{percent(share)} of {len(between)}"

    return {
        "total_effect": str(interval_of(rows[SELECTED, 1], "gain")),
        "stricter_sample": sample(rows[SELECTED, 1]),
        "stricter_test": markdown(["tokens restored", *(f"k = {k}" for k in ks)], table),
        "four_of_large": enough(4, 1, 999),
        "sixteen_of_large": enough(16, 1, 999),
        "four_of_small": enough(4, 0.1, 0.5),
    }


def of_searches() -> Numbers:
    """What the tokens of each search recover in swapped contexts that the search did not see."""
    searches = pd.read_parquet(REFERENCE / "searches.parquet")
    of_evaluators = searches.pivot(
        index=["evaluator", "document_id"],
        columns=["swaps", "search", "k"],
        values=["recovered", "total_effect"],
    )

    def share(search: str, k: int, minus: str | None = None, evaluator: str = EVALUATOR) -> Interval:
        sums = of_evaluators.loc[evaluator]
        recovered = sums["recovered", "other", search, k]
        if minus is not None:
            recovered = recovered - sums["recovered", "other", minus, k]
        return ratio_of_sums(recovered.to_numpy(), sums["total_effect", "other", search, k].to_numpy())

    def same_minus_other(evaluator: str) -> Interval:
        sums = of_evaluators.loc[evaluator]
        places = product(("same", "other"), ("recovered", "total_effect"))
        columns = [sums[name, swaps, "one swap", 16].to_numpy() for swaps, name in places]
        return interval_of_statistic(columns, difference_of_ratios)

    def sample_of(evaluator: str) -> str:
        sizes = rows_where(searches, evaluator=evaluator).groupby("document_id")["num_targets"].max()
        return f"{sizes.sum()} targets of {len(sizes)} texts"

    table = []
    for words, search, passes in (
        ("removal", "removal", "1"),
        ("one swapped context", "one swap", "1"),
        ("four swapped contexts", "four swaps", "4"),
        ("blocks of four tokens, swapped", "blocks", "1/4"),
        ("attention", "attention", "1/100"),
        ("recency", "recency", "0"),
    ):
        cells = []
        for evaluator in (EVALUATOR, SMOLLM2):
            cells += [percent(share(search, k, evaluator=evaluator)) for k in (4, 16)]
            lead = percent(share(search, 16, "one swap", evaluator=evaluator), "")
            cells.append("" if search == "one swap" else lead)
        table.append([words, passes, *cells])
    header = ["search", "passes", "2.3 M: k = 4", "k = 16", "lead, points"]
    header += ["SmolLM2: k = 4", "k = 16", "lead, points"]
    return {
        "searches": markdown(header, table),
        "searches_sample": sample_of(EVALUATOR),
        "searches_sample_smollm2": sample_of(SMOLLM2),
        **{
            f"same_minus_other{words}": percent(same_minus_other(evaluator), " points")
            for words, evaluator in (("", EVALUATOR), ("_demo", "demo-long-seed1"), ("_smollm2", SMOLLM2))
        },
        **{
            f"searches_smollm2_lead_{k}": percent(
                share("removal", k, "recency", evaluator=SMOLLM2), " points"
            )
            for k in (4, 16)
        },
        "searches_demo_lead": percent(
            share("removal", 16, "recency", evaluator="demo-long-seed1"), " points"
        ),
    }


@cache
def interference_targets() -> pd.DataFrame:
    """Length interference of the pretrained model, one row per target."""
    return pd.read_parquet(REFERENCE / "real_model" / interference.TARGETS_FILE)


@cache
def told_facts() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Told facts and their questions in two pretrained models: a row per item and gap; their curves."""
    items = pd.read_parquet(REFERENCE / "real_model" / reach.REACH_FILE)
    return items, reach.curves(items)


@cache
def moved_targets() -> pd.DataFrame:
    """The pretrained model's distant context moved away by position IDs alone: a row per target."""
    return pd.read_parquet(REFERENCE / "distance" / distance.MOVED_FILE)


@cache
def placed_targets() -> pd.DataFrame:
    """Losses of the models trained here behind tokens at chosen IDs."""
    return pd.read_parquet(REFERENCE / "length" / "placed_targets.parquet")


def of_length() -> Numbers:
    """Interference by number and distance, and the two verdicts on tokens needed."""
    places = interference.mechanism(interference_targets())

    def between_texts(number: int, start: int) -> str:
        found = rows_where(places, num_distant=number, near_start=start)["interference"].sort_values()
        # The ends; one number where both round to the same.
        return " to ".join(dict.fromkeys(f"{value:.3f}" for value in (*found[:1], *found[-1:])))

    starts = (2048, 4096, 7680, 11776)
    by_number = [
        [f"{number:,}", *(between_texts(number, start) for start in starts)]
        for number in sorted(places["num_distant"].unique())
    ]
    word, ratios = interference.where_read(interference_targets())
    of_unseen = [percent(ratio) for ratio in ratios.values()]
    slopes = interference.slopes(interference.with_outcomes(interference_targets()))
    rows = rows_by(slopes, "variant", "kind")
    planned = [percent(interval_of(rows["as planned", kind], "slope")) for kind in ("ratio", "nats", "share")]
    trimmed = [
        percent(interval_of(rows[f"{eighth} eighth left out", "ratio"], "slope"))
        for eighth in ("lowest", "highest")
    ]
    natural = pd.read_parquet(REFERENCE / "real_model" / interference.NATURAL_FILE)
    squeezed = rows_where(places, num_distant=11776).iloc[0]
    of_text = rows_where(places, distant_text=squeezed["distant_text"], num_distant=512, near_start=11776)
    effects = rows_by(distance_or_number.of_conditions(placed_targets()), "text", "role", "condition")
    of_conditions = [
        [
            condition,
            *(
                f"{interval_of(row, 'value')}, {row['share']:.0%}"
                for row in (effects[text, distance_or_number.SHORT, condition] for text in ("own", "swap"))
            ),
            interval_of(effects["swap", distance_or_number.LONG, condition], "value"),
        ]
        for condition in distance_or_number.CONDITIONS
    ]
    return {
        "interference_counts": sample(places.iloc[0], ", "),
        "interference_by_number": markdown(
            ["distant tokens", *(f"near from {start:,}" for start in starts)], by_number
        ),
        "interference_where_read": f"{word}: {of_unseen[0]} and {of_unseen[1]}",
        "interference_squeezed_share": f"{squeezed['interference'] / of_text['interference'].item():.0%}",
        "interference_squeezed": str(interval_of(squeezed, "interference")),
        "real_model_verdict": interference.verdict(slopes),
        "real_model_sample": sample(slopes.iloc[0]),
        "real_model_slopes": ", ".join(planned),
        "real_model_trimmed": " and ".join(trimmed),
        "real_model_natural": interference.natural_check(natural),
        "share_slope_no_controls": robust("slope of interference", "share", 0, "", "no controls"),
        "real_model_control": percent(interval_of(rows["negative control", "ratio"], "slope")),
        "distance_or_number": markdown(
            ["distant tokens", "rise of the loss", "interference", "interference, long-context models"],
            of_conditions,
        ),
    }


def of_reach() -> Numbers:
    """How far each pretrained model reads, plain and with YaRN, and the verdicts."""
    items, table = told_facts()
    templates = (*reach.TEMPLATES, reach.TOGETHER)

    def reached(model: str, rope: str, template: str) -> str:
        curve = reach.of_curve(table, model, rope, template)
        gap = reach.reach(curve)
        least = "≥" if gap == curve.index.max() else ""
        return "-" if gap is None else f"{least}{gap:,}"

    found: Numbers = {}
    columns: dict[str, list[str]] = {}
    for model, words, name in ((SMOLLM2, "smollm2", "SmolLM2"), (GEMMA, "gemma", "Gemma 3")):
        for rope in (reach.PLAIN, reach.YARN):
            cells = [reached(model, rope, template) for template in templates]
            columns[f"{name}, {reach.LOOKS[rope][1]}"] = cells
        plain = reach.of_curve(table, model, reach.PLAIN)
        less, last = reach.reads_less_than_trained(table, model)
        found |= {
            f"reach_less_{words}": f"{less}: {percent(reach.kept_at(plain, last))}",
            f"reach_right_{words}": f"{plain['right_told'][last]:.0%}",
        }
        for rope, by in ((reach.YARN, "yarn"), (reach.STAIR, "stair")):
            if readable := reach.makes_readable(items, table, model, rope):
                word, gap, lead = readable
                kept = percent(reach.kept_at(reach.of_curve(table, model, rope), gap))
                found |= {
                    f"reach_{by}_{words}": f"{word}: {kept}, {percent(lead, ' points')} more than plain",
                    f"reach_unread_{words}": f"{gap:,}",
                }
    plain, yarn = (reach.of_curve(table, SMOLLM2, rope) for rope in (reach.PLAIN, reach.YARN))
    color = reach.of_curve(table, SMOLLM2, reach.YARN, "color")
    return found | {
        "reach_kept_early": percent(reach.kept_at(plain, 2048)),
        "reach_yarn_color": percent(reach.kept_at(color, 7168)),
        "reach_yarn_right": f"{yarn['right_told'][7168]:.0%}",
        "reach": markdown(["reach, position IDs", *columns], zip(templates, *columns.values(), strict=True)),
    }


def of_beyond() -> Numbers:
    """What natural text beyond the trained length costs a pretrained model, by scheme of positions."""
    texts = beyond.of_texts(REFERENCE / "beyond")
    harm_of = beyond.harms(texts)
    table = []
    for scheme, harm in harm_of.items():
        gain = marked_bits.student(texts[f"gain {scheme}"])
        repaired = ["", ""]
        if scheme != beyond.PLAIN:
            repaired = [percent(beyond.repaired(harm_of, scheme)), beyond.verdict(harm_of, scheme)]
        table.append([scheme, marked_bits.student(harm), gain, *repaired])
    header = ["positions", "harm, nats", "gain from distant text, nats", "repaired", "half or more?"]
    return {"beyond": markdown(header, table), "beyond_texts": f"{len(texts)}"}


def of_calibration() -> Numbers:
    """How many items are answered that need one, two or three distant words; the study that they were for."""
    items = pd.read_parquet(REFERENCE / "real_model" / "needed_calibration.parquet")
    right = items.groupby(["model", "template"])["is_right"].mean()
    found = {f"calibration_{k}": f"{right[SMOLLM2, f'small-{k}']:.0%}" for k in (1, 2, 3)}
    of_one = right[right.index.get_level_values("template").str.endswith("-1")]
    found["calibration_others"] = f"{of_one.drop((SMOLLM2, 'small-1')).max():.0%}"
    return found


def of_distance() -> Numbers:
    """What predictions keep of a distant context moved away, by the tokens that they need; the verdicts."""
    targets, predictor = distance.deciding(moved_targets())
    slopes = distance.slopes(targets, predictor)
    found: Numbers = {}
    for row in slopes.to_dict("records"):
        outcome = row["outcome"]
        cell = robust("slope of the share kept", outcome, 0, "")
        removal = robust("slope of the share kept", outcome, 0, "", "tokens needed by removal")
        name = f"distance_{outcome}"
        found |= {name: f"{row['word']}: {cell}", f"{name}_cell": cell, f"{name}_removal": removal}
    curves = rows_by(distance.curves(targets), "rope", "gap")
    gaps = sorted({gap for _, gap in curves if gap})
    kept = [
        [reach.LOOKS[rope][1], *(percent(interval_of(curves[rope, gap], "kept_KL")) for gap in gaps)]
        for rope in (reach.PLAIN, reach.YARN)
    ]
    parts = distance.in_parts(targets, predictor, 8)
    needed = parts.groupby("part")[predictor].mean()
    places = [(reach.PLAIN, gap) for gap in (1024, 2048, 4096, 9216)] + [(reach.YARN, 9216)]
    lines = [["all", *(percent(interval_of(curves[place], "kept")) for place in places)]]
    groups = rows_by(distance.curves(parts, ["part"]), "part", "rope", "gap")
    for part, log2_k in enumerate(needed):
        cells = [f"{groups[part, rope, gap]['kept']:.0%}" for rope, gap in places]
        lines.append([f"{log2_k:.1f}", *cells])
    header = ["tokens needed, doublings", "1,024", "2,048", "4,096", "9,216", "YaRN × 2, 9,216"]
    return found | {
        "distance_sample": sample(slopes.iloc[0]),
        "distance_verdict": distance.verdict(slopes),
        "distance_predictor": distance.PREDICTORS[predictor],
        "distance_halves": f"{distance.reliability(targets)[0]:.2f}",
        "distance_both": f"{targets[distance.SPARSITY].corr(targets[distance.BY_REMOVAL]):.2f}",
        "distance_kept": markdown(["share kept at a gap of", *(f"{gap:,}" for gap in gaps)], kept),
        "distance_parts": markdown(header, lines),
    }


def synthetic(folder: str) -> pd.DataFrame:
    """Accuracy in a folder of kept results."""
    return Results(REFERENCE / folder).frame("synthetic_accuracy")


def answers_of_parity() -> pd.DataFrame:
    """Every example of parity trained to 99.5 %, and its answer."""
    return Results(REFERENCE / "synthetic/parity_learnt").frame("synthetic_examples")


def of_synthetic_tasks() -> Numbers:
    """Functions of marked bits at ten times the trained length; exact match by position scheme."""
    functions = synthetic("length/functions")
    learned = functions[functions["is_learnt"]]
    longer_trained = synthetic("synthetic/parity_learnt")

    def by_k(words: str, accuracy: pd.DataFrame, name: str = "parity") -> list[str]:
        return [words, *(f"{marked_bits.by_seed(accuracy, name, [k]).mean():.0%}" for k in range(1, 9))]

    of_or = marked_bits.by_seed(learned, "or", [8])
    of_bits = [
        *(by_k(words, learned, name) for name, words in marked_bits.FUNCTIONS.items()),
        by_k("parity, trained to 99.5%", longer_trained),
    ]
    one = marked_bits.by_seed(longer_trained, "parity", [1])
    as_or = marked_bits.agreement_with_or(answers_of_parity())
    others = longer_trained[longer_trained["seed"].isin(as_or.index[as_or < OR_MODELS])]
    of_other_tasks = functions[functions["task"] != "sparse_parity"]
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
            *(
                found.get((folder, name, scheme, size), "")
                for folder, name, scheme in (
                    ("results", task, "predicted"),
                    ("rotated", rotated, "predicted"),
                    ("results", task, "coupled"),
                    ("results", task, "pose"),
                )
            ),
        ]
        for words, task, rotated, size in (
            ("variable assignment, 18 (3 times)", *2 * ("variable_assignment",), 18),
            ("parity with scratchpad, 30 bits (3 times)", *2 * ("parity_scratchpad",), 30),
            ("copy, 30 letters (3 times)", "copy", "copy", 30),
            ("copy, 40 letters (4 times)", "copy", "copy", 40),
            ("addition, 24 digits (3 times)", "addition", "addition_padded", 24),
        )
    ]
    return {
        "marked_bits": markdown(["function", *(f"k = {k}" for k in range(1, 9))], of_bits),
        "marked_bits_verdict": marked_bits.verdict(functions),
        "or_minus_parity": percent(marked_bits.or_minus_parity(learned, marked_bits.MANY), " points"),
        "parity_one": f"{one.mean():.0%}",
        "parity_holds_one": f"{(one >= marked_bits.HOLDS).sum()} of {len(one)}",
        "parity_fall": percent(marked_bits.fall(longer_trained), " points"),
        "parity_verdict": marked_bits.fall_verdict(longer_trained),
        "parity_fall_others": percent(marked_bits.fall(others), " points"),
        "marked_bits_learned": marked_bits.verdict(pd.concat([of_other_tasks, longer_trained])),
        "parity_least_or": f"{as_or.min():.0%}",
        "parity_answers_or": f"{(as_or >= OR_MODELS).sum()} of {len(as_or)}",
        "or_eight": percent(Interval(of_or.mean(), of_or.min(), of_or.max())),
        "copy_4_times": found["rotated", "copy", "predicted", 40],
        "copy_4_times_quarter": found["results", "copy", "predicted", 40],
        "ppc_bits": ", ".join(
            found["rotated", "parity_scratchpad", "predicted", size].partition(" ")[0]
            for size in (10, 15, 20)
        ),
        "pose_10_bits": found["rotated", "parity_scratchpad", "pose", 10],
        "position_coupling": markdown(
            ["task, test size", "PPC", "PPC, rotary_pct 1", "coupled IDs given", "PoSE alone"], coupling
        ),
    }


def of_schemes() -> Numbers:
    """ALiBi and others beside RoPE, PoSE and coupled IDs at ten times the trained length."""
    of_lengths = [schemes.of_cells(synthetic(f"synthetic/{name}")) for name in ("schemes", "schemes_36")]

    def table_of(cells: pd.DataFrame) -> str:
        tasks = [task for task in schemes.TASK_WORDS if task in set(cells["task"])]
        rows = [
            [words, *(schemes.cell_words(cells, task, scheme) for task in tasks)]
            for scheme, words in synthetic_tasks.POSITION_WORDS.items()
            if scheme in set(cells["positions"])
        ]
        return markdown(["accuracy", *(schemes.TASK_WORDS[task] for task in tasks)], rows)

    def lead_of(cells: pd.DataFrame, name: str) -> str:
        lead, word = schemes.contrast(cells, name)
        return f"{word}: " + ("fewer than three seeds" if lead is None else percent(lead, " points"))

    leads = [
        [words, *(lead_of(of_length, name) for of_length in of_lengths)]
        for name, (words, *_) in schemes.CONTRASTS.items()
    ]
    leads.append(["the claim", *map(schemes.verdict, of_lengths)])
    at_trained = rows_where(of_lengths[0], is_learnt=True, times=1)
    of_one = schemes.of_cells(synthetic("synthetic/schemes"), k=1)

    def with_one(scheme: str) -> str:
        ones = [schemes.seeds_of(of_one, task, scheme).mean() for task in (schemes.FIRST, schemes.LAST)]
        return " and ".join(f"{one:.0%}" for one in ones)

    return {
        "schemes_one": with_one("alibi"),
        "schemes_one_pose": with_one("pose"),
        "schemes_least": f"{at_trained['exact_match'].min():.0%}",
        "schemes": table_of(of_lengths[0]),
        "schemes_twice": table_of(of_lengths[1]),
        "schemes_leads": markdown(["contrast", "trained length", "twice that"], leads),
        "schemes_verdict": schemes.verdict(of_lengths[0]),
    }


def of_olmo_schemes() -> Numbers:
    """OLMo with other schemes of positions, beyond the trained length."""
    texts = olmo_schemes.of_texts(pd.read_parquet(REFERENCE / "olmo_schemes.parquet"))
    table = []
    for scheme, words in olmo_schemes.SCHEME_WORDS.items():
        losses_of = rows_where(texts, scheme=scheme)[["loss_1", "loss_2", "loss_4"]].mean()
        gains = (
            marked_bits.student(olmo_schemes.mean_by(texts, scheme, name, "document_id"))
            for name in ("rise", "specific_gain", "null")
        )
        table.append([words, *(f"{loss:.2f}" for loss in losses_of), *gains])
    rises = olmo_schemes.rises(texts, "alibi")
    halves = olmo_schemes.beside_half(texts, "alibi")
    header = ["trained at 32 tokens", "32", "64", "128", "rise", "specific gain", "null"]
    return {
        "olmo_schemes": markdown(header, table),
        "alibi_rise": f"{olmo_schemes.is_below(olmo_schemes.MOST_RISE, rises)}:"
        f" {' and '.join(map(str, rises))}",
        "alibi_reads": f"{olmo_schemes.is_below(0, halves)}: {' and '.join(map(str, halves))}",
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
    bits, hops = (of_task for _, of_task in accuracy.groupby("task"))
    found = Results(REFERENCE / "synthetic" / "further").frame("found_id_dependencies")
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
        "ids_swapped": f"{effects_of['swap'][0]:.1f}",
        "ids_swapped_within": f"{effects_of['swap'].loc[1:].max():.3f}",
    }


def theory_by_length() -> pd.DataFrame:
    """Errors of sparse functional attention, those with another L_local and other objectives, too."""
    kept = [Results(REFERENCE / "theory" / name).frame(theory.NAME) for name in ("results", "varied")]
    return pd.concat(map(theory.by_length, kept))


def of_theory() -> Numbers:
    """Squared error of sparse functional attention with local S*."""
    table = theory_by_length()
    varied = Results(REFERENCE / "theory" / "varied").frame(theory.NAME)
    of_models = rows_by(table[table["length_ratio"] == 8], "model")

    measures = {"in_distribution_error": 1e5, "squared_error": 1e3, "growth_exponent": 1}
    rows = []
    for words, model in (
        ("k = 1", "local-k1"),
        ("k = 2", "local-k2"),
        ("k = 3", "local-k3"),
        ("k = 2, L_local = 4", "local_4-k2"),
        ("k = 2, L_local = 16", "local_16-k2"),
        ("k = 2, mean over lengths", "local_mean-k2"),
        ("k = 2, minimax over lengths", "local_minimax-k2"),
    ):
        found = [(interval_of(of_models[model], name), scale) for name, scale in measures.items()]
        first, *cells = [
            f"{scale * x.estimate:.2f} [{scale * x.low:.2f}, {scale * x.high:.2f}]" for x, scale in found
        ]
        rows.append([words, first.split()[0], *cells])

    at_8_times = varied[varied["test_length"] == 8 * varied["train_context_length"]]
    by_objective = np.log2(at_8_times.pivot(index="seed", columns="model", values="squared_error"))
    minimax_over_mean = by_objective["local_minimax-k2"] - by_objective["local_mean-k2"]
    return {
        "minimax_over_mean": str(
            ratio_of_sums(minimax_over_mean.to_numpy(), np.ones(len(minimax_over_mean)))
        ),
        "theory": markdown(
            ["local S\\*", "error in distribution × 10⁵", "error at 8 L × 10³", "growth exponent, L to 8 L"],
            rows,
        ),
        "theory_all_keys": percent(interval_of(of_models["local_all_keys-k2"], "error_rate")),
    }


def of_contexts() -> Numbers:
    """Worth of the distant context, and the windows that keep most of it."""
    models = rows_by(losses.summarize_models(Results(EVALUATED).frame("loss_differences")), "model")
    worth = {name: str(interval_of(row, "loss_difference")) for name, row in models.items()}
    of_novels = Results(REFERENCE / "study" / "novels" / "results").frame("loss_differences")
    # The difference is short minus long: what the longer context costs is its negative.
    harm = -losses.summarize_models(of_novels)["loss_difference"]
    needed = losses.needed_context(Results(EVALUATED).frame("length_losses"))
    row = rows_by(needed, "model", "criterion")[SELECTOR, "loss"]
    windows = [interval_of(row, f"window_{kept}") for kept in (90, 99)]
    cells = [f"{window.estimate:.0f} [{window.low:.0f}, {window.high:.0f}]" for window in windows]
    by_scores = pd.read_parquet(REFERENCE / "training_by_scores.parquet").pivot(index="seed", columns="score")
    scores = {
        f"{measure}_{score}": str(
            ratio_of_sums(
                (by_scores[measure][score] - by_scores[measure]["random"]).to_numpy(), np.ones(len(by_scores))
            )
        )
        for measure in ("gain", "loss")
        for score in ("gzip_ratio", "mean_log2_k")
    }
    policies = pd.read_parquet(REFERENCE / "cache_policies.parquet").query("k == 16 and not is_null")
    for words, rules in CACHE_POLICIES.items():
        rows = policies[policies["rule"].isin(rules)]
        for column, name in (("divergence_kept", words), ("loss_kept", f"{words}_loss")):
            scores[name] = f"{rows[column].min():.0%} to {rows[column].max():.0%}"
    return scores | {
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
    return (
        of_few_tokens()
        | of_robustness()
        | of_stricter_test()
        | of_searches()
        | of_length()
        | of_reach()
        | of_beyond()
        | of_calibration()
        | of_distance()
        | of_contexts()
        | of_synthetic_tasks()
        | of_schemes()
        | of_olmo_schemes()
        | of_dependencies()
        | of_theory()
    )


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
    differences = losses.losses_beside_reference(Results(EVALUATED).frame("length_losses"), SELECTOR, 16)
    errors = theory_by_length()
    examples = Results(REFERENCE / "length" / "cues").frame("synthetic_examples")
    pretrained = drawing.ModelLabel(
        SMOLLM2, drawing.OTHER_MODELS[0], "135 M parameters", train_context_length=8192
    )
    figures = {
        "real_model/loss_against_k": recovered_loss.loss_figure(
            curves()["SmolLM2 135 M"].query("k <= 256"), pretrained
        ),
        "real_model/mechanism": interference.mechanism_figure(interference.mechanism(interference_targets())),
        "real_model/reach": reach.reach_figure(told_facts()[1]),
        "distance/distance": distance.moved_figure(*distance.deciding(moved_targets())),
        "study/loss_against_k": recovered_loss.loss_figure(curves()["2.3 M"], label),
        "evaluated/token_effects": recovered_loss.effects_figure(
            effects(), labels[SELECTOR], labels[EVALUATOR].text
        ),
        "evaluated/loss_against_context_length": losses.lengths_figure(
            differences, labels, [64, 256], SELECTOR
        ),
        "length/distance_or_number": distance_or_number.figure(
            distance_or_number.of_conditions(placed_targets())
        ),
        "length/marked_bits": marked_bits.figure_of(
            synthetic("length/functions"), synthetic("synthetic/parity_learnt"), answers_of_parity()
        ),
        "length/cue_distances": cues.distances_figure(examples),
        "synthetic/schemes": schemes.figure_of(schemes.of_cells(synthetic("synthetic/schemes"))),
        "synthetic/cues": cues.cues_figure(synthetic("synthetic/cues")),
        f"theory/{theory.NAME}": theory.errors_figure(errors),
        "theory/squared_errors": theory.squared_errors_figure(errors),
    }
    for path, figure in figures.items():
        drawing.save(figure, REFERENCE, path, with_pdf=False)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # so that --help writes nothing
    draw()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := fill(text)) != text:
            page.write_text(new, encoding="utf-8")
            sys.stdout.write(f"filled {page.relative_to(ROOT)}\n")
