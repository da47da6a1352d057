"""The drawing of needles in haystacks: tables of `analysis.tokens.needles` in, a Figure out.

Solid and filled is what was measured, dashed and hollow the null: the same rule's choice at the same
positions of another document. Bars are 95 % intervals over haystacks.
"""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_texts import LineEnd, label_line_ends, put_title
from analysis.figures import TEXT_WIDTH, draw_with_bars, panels, tokens_axis
from analysis.palette import BLACK, GREY, rule_look
from analysis.roles import Role, rule_words, size_words
from analysis.titles import is_above, percent, sample_size, subtitle
from pipeline.influence.rules import CONTROLS, RULES
from pipeline.results.names import OTHER_DOCUMENT, OWN

OVER_HAYSTACKS = "bars: 95 % over haystacks"
_TOLD_AT_K = 4
_STEP_ASIDE = 0.012  # of the depth, between models
_BESIDE = 1.04  # factor on a logarithmic axis between a rule's bars and its null's, which may be equal


def _sample(rows: pd.DataFrame) -> str:
    return sample_size(rows).replace("targets", "answer tokens").replace("documents", "haystacks")


def retrieval_title(retrieval: pd.DataFrame) -> str:
    """From where the needle clearly helps, how much at most, and whether its answer is retrieved.

    Args:
        retrieval: `needles.retrieval_losses`, one context length.
    """
    helped = retrieval[retrieval["retrieval_gain_low"] > 0]
    best = retrieval["retrieved_share"].max()
    retrieved = f"at best {percent(best)} of them are retrieved" if best else "none is retrieved"
    if helped.empty:
        return f"A needle makes the tokens of its answer clearly cheaper from no depth; {retrieved}"
    where = "every depth" if len(helped) == len(retrieval) else "some depths"
    most = helped["retrieval_gain"].max()
    return (
        f"A needle makes the tokens of its answer cheaper from {where}, by at most {most:.2f} nats;"
        f" {retrieved}"
    )


def retrieval_figure(retrieval: pd.DataFrame, roles: Mapping[str, Role]) -> Figure:
    """How much less the answer costs with the needle, by its depth: a line a model, all on one scale.

    Args:
        retrieval: `needles.retrieval_losses`, one context length.
        roles: of the models.
    """
    figure, ax = panels(1, 1, TEXT_WIDTH, 2.9)
    ends = []
    models = list(dict.fromkeys(retrieval["model"]))
    for index, model in enumerate(models):
        line, look = retrieval[retrieval["model"] == model].sort_values("depth"), roles[model].look
        depths = line["depth"] + _STEP_ASIDE * (index - (len(models) - 1) / 2)
        gains = line["retrieval_gain"]
        draw_with_bars(ax, depths, line, "retrieval_gain", **look.measured)
        ends.append(LineEnd(depths.iloc[-1], gains.iloc[-1], roles[model].words, look.color))
    ax.axhline(0, color=BLACK, linewidth=0.6)
    depths = sorted(retrieval["depth"].unique())
    ax.set_xticks(depths, [f"{depth:g}" for depth in depths])
    ax.set_xlabel("depth of the needle (0: where the context begins, 1: just before the question)")
    ax.set_ylabel("gain from the needle\n(nats a token)")
    label_line_ends(ax, ends)
    sizes = dict.fromkeys(size_words(roles[model].num_parameters) for model in models)
    told = ["retrieved: more than half of the probability", OVER_HAYSTACKS]
    sample = f"{_sample(retrieval)} a point"
    put_title(figure, retrieval_title(retrieval), subtitle(sample, _length(retrieval), *sizes, *told))
    return figure


def _length(rows: pd.DataFrame) -> str:
    return f"{rows['context_length'].iloc[0]:,} tokens of context"


def found_title(found: pd.DataFrame) -> str:
    """How often a rule's first tokens hold the very token of the needle, beside its null and chance.

    Of four tokens, or the largest k below; of the best rule among those that do not see the answer, where
    there is one. It says what is shown where that is not clearly above the null, or has no null.

    Args:
        found: `needles.found_needles`, one model and length.
    """
    k = _told_k(found)
    rows = found[(found["k"] == k) & ~found["rule"].isin(CONTROLS)]
    own, null = (rows[rows["far_context"] == far].set_index("rule") for far in (OWN, OTHER_DOCUMENT))
    own = own[own.index.isin(null.index)].sort_values("hit_share")
    blind = own[[rule in RULES and RULES[rule].sees != "answer" for rule in own.index]]
    best = (own if blind.empty else blind).tail(1)
    if best.empty or not is_above(best["hit_share_low"].iloc[0], null["hit_share_high"][best.index[0]]):
        return "How often the needle's copy of an answer token is among the selected"
    hits, chance = (best[name].iloc[0] for name in ("hit_share", "chance_hit_share"))
    return (
        f"For {percent(hits)} of the answer's tokens the needle's copy is among the first {k} of"
        f" “{rule_words(str(best.index[0]))}”; null {percent(null['hit_share'][best.index[0]])},"
        f" chance {percent(chance)}"
    )


def _told_k(found: pd.DataFrame) -> int:
    ks = found["k"].unique()
    return int(max((k for k in ks if k <= _TOLD_AT_K), default=min(ks)))


def found_against_k(found: pd.DataFrame, measure: str, ax: Axes) -> list[LineEnd]:
    """Precision, recall or hits of S_k against k, a line a rule beside its null; what each is called.

    A choice at random is drawn as what it has on average, chance.

    Args:
        found: `needles.found_needles`, one model and length.
        measure: one of `needles.MEASURES`.
        ax: to draw on.
    """
    ends = []
    for (rule, far_context), line in found.groupby(["rule", "far_context"]):
        is_null = far_context == OTHER_DOCUMENT
        if rule == "random" or (is_null and rule in CONTROLS):
            continue
        line, look = line.sort_values("k"), rule_look(str(rule))
        x = line["k"] * (_BESIDE if is_null else 1 / _BESIDE)
        draw_with_bars(ax, x, line, measure, **look.null if is_null else look.measured)
        words = f"{rule_words(str(rule))}{': null' if is_null else ''}"
        ends.append(LineEnd(x.iloc[-1], line[measure].iloc[-1], words, look.color))
    chance = found.groupby("k")[f"chance_{measure}"].mean()
    ax.plot(chance.index, chance, color=GREY, linestyle=":")
    ends.append(LineEnd(chance.index[-1], chance.iloc[-1], "chance", GREY))
    tokens_axis(ax, found["k"].unique())
    ax.set_ylim(-0.03, 1.03)
    return ends


def found_figure(found: pd.DataFrame, role: Role) -> Figure:
    """For how much of the answer the very token of the needle is among the k, a line a rule.

    Args:
        found: `needles.found_needles`, one model and length.
        role: of the model.
    """
    figure, ax = panels(1, 1, TEXT_WIDTH, 2.9)
    ends = found_against_k(found, "hit_share", ax)
    ax.set_ylabel("answer tokens whose copy in the\nneedle is among the k (share)")
    label_line_ends(ax, ends)
    size = size_words(role.num_parameters)
    parts = _sample(found), _length(found), role.words, size, OVER_HAYSTACKS
    put_title(figure, found_title(found), subtitle(*parts))
    return figure
