"""The page of the benchmark: its worked example is a method like any other, and what it names is there."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
import torch
from olmo.model import OLMo
from quoted import REFERENCE, agree, by, interval, section
from scipy import stats
from shown_commands import commands_of
from statsmodels.stats.multitest import multipletests

from pipeline.measuring import methods, rules
from pipeline.measuring.contexts import Batching, Measurement
from pipeline.measuring.far_context import far_contexts, sparse_contexts
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import selected_positions
from pipeline.models.olmo import OLMoCausalLM

ROOT = Path(__file__).resolve().parents[2]
METHODS = ROOT / "analysis" / "METHODS.md"
PAGE = METHODS.read_text(encoding="utf-8")
LENGTHS = ContextLengths(short_context_length=2, long_context_length=12, targets_per_chunk=2)


def test_the_worked_example(make_olmo: Callable[..., OLMo], monkeypatch: pytest.MonkeyPatch) -> None:
    codes, rows = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL), re.findall(r"`(Rule\(.*\))`", PAGE)
    names = []
    for code, row in zip(codes, rows, strict=True):
        names += re.findall(r"^def (\w+)", code, re.MULTILINE)
        written: dict[str, Any] = {}
        exec(code, written)  # noqa: S102
        monkeypatch.setattr(methods, names[-1], written[names[-1]], raising=False)
        monkeypatch.setitem(rules.RULES, names[-1], eval(row, vars(rules)))  # noqa: S307
        assert rules.RULES[names[-1]].name == names[-1]
    name, policy = names
    # The token before target 10 is 7, and before target 11 it is 5. Behind a 7 stand the places 2 and 6,
    # behind a 5 the places 4 and 9, but 9 is in the short context.
    own = np.array([1, 7, 3, 5, 3, 7, 3, 2, 5, 7, 5, 1])
    context = far_contexts(
        Measurement(OLMoCausalLM(make_olmo()), LENGTHS, Batching(50)), own, own[::-1].copy()
    )
    found = selected_positions(context["own"], name, 2, seed=[0])
    assert found.tolist() == [[6, 2], [4, 8]]  # of the others the nearest
    measured = sparse_contexts(context["own"], {name: found}, {name: [1, 2]})[name]
    assert np.isfinite(measured.losses).all() and measured.losses.shape == (2, 2, 1)
    layers: list[np.ndarray] = []
    tokens_1S, positions_1S = (torch.as_tensor(array)[None] for array in (own[:11], np.arange(11)))
    context["own"].model.watch_heads(
        tokens_1S, positions_1S, None, None, lambda queries, keys, attention: layers.append(keys.numpy())
    )
    norms_S = np.linalg.norm(np.concatenate(layers), axis=-1).mean(0)
    small = selected_positions(context["own"], policy, 8, seed=[0])
    for target, num_far in enumerate((8, 9)):
        assert small[target].tolist() == np.argsort(norms_S[:num_far])[:8].tolist()


def test_the_policies_of_a_cache() -> None:
    _, _, text = PAGE.partition("## Policies of a cache")
    table = pd.read_parquet(REFERENCE / "cache_policies.parquet")
    of_policies = by(table, "model", "rule", "is_null", "k")
    first, second = "300k-long-seed2", "300k-long-seed4"
    section, _, _ = text.partition("\n### ")
    quoted = re.findall(r"^\| `(\w+)`[^|]*\|(.*)\|$", section, re.MULTILINE)
    of_first = table[(table["model"] == first) & (table["k"] == 16) & ~table["is_null"]]
    assert [rule for rule, _ in quoted] == of_first["rule"].tolist()
    for rule, cells in quoted:
        *kept, by_loss, recall = cells.split("|")
        shown = [(first, 4), (first, 16), (second, 16), (first, 64)]
        for (model, k), cell in zip(shown, kept, strict=True):
            agree(cell, *interval(of_policies[model, rule, False, k], "divergence_kept"))
        agree(by_loss, *interval(of_policies[first, rule, False, 16], "loss_kept"))
        agree(recall, *interval(of_policies[first, rule, False, 16], "recall"))
    null = of_policies[first, "leave_one_out_divergence", True, 16]
    (told,) = re.findall(r"is below 0: (.*?) at k = 16", section)
    agree(told, *interval(null, "divergence_kept"))
    (num_documents,) = re.findall(r"in the same way \((\d+) documents\)", section)
    assert int(num_documents) == null["num_documents"]
    five = {"snapkv", "attention", "streaming_llm", "nearest", "quest"}
    for model in (first, second):  # the plan's rule: which intervals lie apart
        rows = {rule: of_policies[model, rule, False, 16] for rule in (*five, "random", "h2o")}
        least = min(rows[rule]["divergence_kept_low"] for rule in five)
        assert least > max(rows[rule]["divergence_kept_high"] for rule in ("random", "h2o"))
        most = max(rows[rule]["divergence_kept_low"] for rule in five)
        assert most < min(rows[rule]["divergence_kept_high"] for rule in five)
        assert rows["random"]["divergence_kept_low"] < rows["h2o"]["divergence_kept_high"]


def test_the_benchmark_of_methods() -> None:
    _, _, text = PAGE.partition("## What it found")
    text, _, _ = text.partition("\n## ")
    table = pd.read_parquet(REFERENCE / "methods.parquet").query("k == 4")
    rows = by(table, "rule", "intervention")
    quoted = re.findall(r"^\| `?(\w+)`?[^|]*\|(.*)\|$", text, re.MULTILINE)[1:]
    assert len(quoted) == 9
    for rule, cells in quoted:
        row = rows[rule, "background"]
        worth, behind, found, dependencies, cost, milliseconds = cells.split("|")
        agree(worth, *interval(row, "divergence_effect"))
        if behind.strip():
            agree(behind, *interval(row, "behind_first"))
        agree(found, *interval(row, "found_signs"))
        if dependencies.strip():
            agree(dependencies, *interval(row, "found_dependencies"))
        agree(cost, row["token_forwards_per_target"], row["backward_tokens_per_target"])
        agree(milliseconds, 1000 * row["seconds_per_target"])
    assert table[table["intervention"] == "background"]["rule"].iloc[0] == quoted[0][0]
    removed = rows["leave_one_out_divergence", "remove"]
    (behind,) = re.findall(r"`leave_one_out_divergence` brings back ([\d.]+ \[.*?\]) less", text)
    agree(behind, *interval(removed, "behind_first"))
    (worth,) = re.findall(r"`attention_rollout` is first, with\s+([\d.]+ \[.*?\])", text)
    agree(worth, *interval(rows["attention_rollout", "remove"], "divergence_effect"))


def test_the_scores_of_documents() -> None:
    """The query of the page prints its table; p-values and comparisons with the stake, by scipy."""
    text = section(METHODS, "Scores of documents")
    (query,) = [shown.text for shown in commands_of(METHODS) if "training_by_scores" in shown.text]
    printed = by(duckdb.sql(query.split('"')[1]).df(), "score")
    quoted = re.findall(r"^\| (?:`(\w+)`|random)[^|]*\|(.*)\|$", text, re.MULTILINE)
    assert [score or "random" for score, _ in quoted] == list(printed)
    for score, cells in quoted:
        mean, *differences = cells.split("|")
        agree(mean, printed[score or "random"]["gain"])
        for name, cell in zip(("gain", "loss"), differences if score else (), strict=bool(score)):
            more, spread = printed[score][f"more_{name}"], printed[score][f"plus_minus_{name}"]
            agree(cell, more, more - spread, more + spread)
    gain = pd.read_parquet(REFERENCE / "training_by_scores.parquet")
    gain = gain.pivot(index="seed", columns="score", values="gain")
    others = gain.drop(columns="random")
    p_values = stats.ttest_1samp(others.sub(gain["random"], axis=0), 0).pvalue
    holm = dict(zip(others, multipletests(p_values, method="holm")[1], strict=True))
    assert {score for score, p in holm.items() if p < 0.05} == {"mean_log2_k", "gzip_ratio"}
    (told,) = re.findall(r"downwards \(p = (\S+ and \S+)\)", text)
    agree(told, holm["mean_log2_k"], holm["gzip_ratio"])
    for score, sign, pattern in (("num_tokens", 1, "length, which"), ("gzip_ratio", -1, "gzip, which")):
        (told,) = re.findall(rf"{pattern} gives (\S+ \[.*?\])", text)
        tested = stats.ttest_1samp(sign * (gain[score] - gain["stake"]), 0)
        agree(told, sign * (gain[score] - gain["stake"]).mean(), *tested.confidence_interval())
