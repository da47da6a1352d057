"""Distance set by hand in natural text: planted slopes are found, the rules, rows by hand."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from hugging_face_families import make_model
from sparsity_length.analysis.reference import length_failures
from sparsity_length.programs import influential_tokens, length_interference, tokenize_c4

from sparsity_length.figures import distance
from sparsity_length.figures.reach import PLAIN, YARN
from sparsity_length.results.read import Results

GAPS = {PLAIN: {0: 1.0, 2048: 0.5, 4096: 0.2, 9216: -0.4}, YARN: {0: 1.0, 2048: 0.6, 4096: 0.5, 9216: 0.1}}
MEAN_FALL = GAPS[PLAIN][4096] - GAPS[PLAIN][9216]


def planted_targets(times: float, seed: int, num_texts: int = 24, noise: float = 0.15) -> pd.DataFrame:
    """Slopes of so many times the smallest effect; those of the controls are larger, and not straight."""
    rng = np.random.default_rng(seed)
    texts = np.repeat(np.arange(num_texts), 8)
    size = len(texts)
    log_effect = rng.normal(-0.5, 0.7, size)
    entropy = rng.uniform(0, 5, size)
    needed = 6 + (log_effect + 0.5) + 0.3 * (entropy - 2.5) + rng.normal(0, 1.2, size)
    worth = 0.7 * np.exp(log_effect + rng.normal(0, 0.2, size))
    of_controls = 0.1 * np.sin(2 * log_effect) + 0.02 * entropy + 0.03 * rng.normal(size=num_texts)[texts]
    # Per doubling: 2 points at 2,048 and 4,096; at 9,216 as much more as makes the fall 10% of its mean.
    slopes = {2048: -0.02, 4096: -0.02, 9216: -0.02 - 0.1 * MEAN_FALL}
    columns = {}
    for rope, shares in GAPS.items():
        for gap, share in shares.items():
            slope = slopes.get(gap, 0) * (rope == PLAIN)
            kept = share + (times * slope * (needed - 6) + of_controls + rng.normal(0, noise, size)) * (
                gap > 0
            )
            columns[f"KL {rope} {gap}"] = worth * (1 - kept)
            columns[f"loss {rope} {gap}"] = 3 + worth * (1 - kept)
        columns |= {f"KL {rope} near": worth, f"loss {rope} near": 3 + worth}
        columns |= {f"KL {rope} swapped": np.exp(log_effect), f"loss {rope} swapped": 3 + np.exp(log_effect)}
    return pd.DataFrame(
        {
            "document_id": texts.astype(str),
            "source": np.where(texts % 2, "c4", "novels"),
            "entropy": entropy,
            "log_total_effect": log_effect,
            "mean_log2_k": needed,
            **{name: needed + rng.normal(0, 1, size) for name in distance.HALVES},
            distance.BY_REMOVAL: needed,
            **columns,
        }
    )


@pytest.mark.parametrize("times", [0, 2])
def test_planted_slopes_are_returned(times: int) -> None:
    planted = {
        name: times * outcome.sign * outcome.smallest for name, outcome in distance.OUTCOMES.items()
    } | {distance.READABLE: times * (0.02 + 0.1 * MEAN_FALL)}
    drawn = [distance.known_targets(planted_targets(times, seed), "mean_log2_k") for seed in range(40)]
    for name, expected in planted.items():
        values = distance.OUTCOMES[name].values
        found = np.array([distance.slope(values, "mean_log2_k", targets)["slope"] for targets in drawn])
        error = found.std() / np.sqrt(len(found))
        # Clipping and winsorizing take a few percent of a slope.
        assert abs(found.mean() - expected) < 3 * error + 0.05 * abs(expected)
    covers = []
    for targets in drawn[:6]:
        table = distance.slopes(targets, "mean_log2_k").set_index("outcome")
        for name in (distance.TRAINED, distance.UNSEEN):
            low, high = table.loc[name, ["slope_low", "slope_high"]]
            covers.append(low < planted[name] < high)
            # As precise as the plan expects, and better: planted noise is smaller.
            assert high - low < 4 * distance.OUTCOMES[name].smallest
    # Of 12 intervals of 95%, 9 or fewer cover in one case of 50.
    assert sum(covers) >= 10


def test_a_strong_effect_is_supported_and_none_is_refuted() -> None:
    def word(times: float) -> str:
        targets = distance.known_targets(planted_targets(times, 0, 36, noise=0.05), "mean_log2_k")
        return distance.verdict(distance.slopes(targets, "mean_log2_k"))

    assert [word(4), word(0), word(1)] == ["supported", "refuted", "inconclusive"]


@pytest.mark.parametrize(
    ("trained", "unseen", "holm", "words"),
    [
        ((-0.06, -0.03), (0.12, 0.3), 0.01, ["supported", "supported"]),
        ((-0.06, -0.01), (0.12, 0.3), 0.01, ["inconclusive", "supported"]),
        ((-0.06, -0.03), (0.12, 0.3), 0.06, ["inconclusive", "inconclusive"]),
        ((-0.01, 0.01), (-0.09, 0.09), 1.0, ["refuted", "refuted"]),
        ((0.01, 0.05), (-0.3, -0.01), 1.0, ["refuted", "refuted"]),
        ((-0.01, 0.03), (-0.3, 0.05), 1.0, ["inconclusive", "inconclusive"]),
    ],
)
def test_the_rule_of_one_outcome(
    trained: tuple[float, float], unseen: tuple[float, float], holm: float, words: list[str]
) -> None:
    rows = [
        {"outcome": name, "slope_low": ends[0], "slope_high": ends[1], "p_value": 0.5, "holm_p_value": holm}
        for name, ends in ((distance.TRAINED, trained), (distance.UNSEEN, unseen))
    ]
    assert [distance._word(row) for row in rows] == words


def test_reliability_shape_and_figure() -> None:
    targets = distance.known_targets(planted_targets(2, 0, num_texts=100), "mean_log2_k")
    of_halves, of_mean = distance.reliability(targets)
    # The predictor has a standard deviation of 1.5 or so, and each half an error of 1.
    variance = targets["mean_log2_k"].var()
    assert of_halves == pytest.approx(variance / (variance + 1), abs=0.05)
    assert of_mean == pytest.approx(variance / (variance + 0.5), abs=0.05)
    table = distance.curves(distance.in_parts(targets, "mean_log2_k", 8), ["part"])
    plain = table[(table["rope"] == PLAIN) & (table["gap"] == 2048)].set_index("part")["kept"]
    assert len(plain) == 8 and plain[0] - plain[7] > 0.1
    all_kept = distance.curves(targets).set_index(["rope", "gap"])
    assert (all_kept.loc[(PLAIN, 0), ["kept", "kept_KL", "kept_loss"]] == 1).all()
    assert all_kept.loc[(YARN, 4096), "kept_KL"] == pytest.approx(0.5, abs=0.1)
    distance.moved_figure(targets, "mean_log2_k")


def test_few_texts_with_the_first_predictor_leave_the_second_one_to_decide() -> None:
    targets = planted_targets(0, 0)
    assert distance.predictor_of(targets) == "mean_log2_k"
    targets.loc[:7, "mean_log2_k"] = np.nan  # a text
    assert distance.predictor_of(targets) == distance.BY_REMOVAL


def run(program: ModuleType, *words: object) -> None:
    program.STAGE(list(map(str, words)))


def test_targets_hold_what_was_measured_of_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"text": "".join(rng.choice(list("abcdefgh "), 300)), "url": source}
        for source in 4 * ["c4", "novels"]
    ]
    for name, of in (("texts", rows[:7]), ("train", rows[7:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of))
    words: list[object] = [
        "--source",
        tmp_path / "train.jsonl",
        "--evaluation-source",
        tmp_path / "texts.jsonl",
    ]
    run(tokenize_c4, "--out", tmp_path / "data", *words, "--tokenizer", "bpe:257")
    make_model("llama", vocab_size=257).save_pretrained(tmp_path / "llama")
    flags: list[object] = ["--data", tmp_path / "data", "--checkpoints", tmp_path / "llama"]
    flags += ["--long-context-length", 49, "--targets-per-chunk", 24, "--target-stride", 8]
    flags += ["--max-chunks-per-document", 1]
    placed: list[object] = [*flags, "--near-context-length", 8, "--compared-with", "full", "--placements"]
    placed += ["own:all", "own:all+40", "swap:all"]
    run(length_interference, *placed, "--results", tmp_path / "plain")
    run(length_interference, *placed, "--results", tmp_path / "yarn", "--rope", "yarn:2")
    few: list[object] = [*flags, "--short-context-length", 8, "--rules", distance.RULE, "recency"]
    few += ["--minimum-gain", 0, "--null-fraction", 1e-9, "--k", 1, 2, 4, 16]
    # With a screen, every number of tokens up to all.
    run(influential_tokens, *few, "--ablation", "mask", "--screen", 16, "--results", tmp_path / "removed")
    run(influential_tokens, *few, "--trial-swaps", 4, "--results", tmp_path / "needed")
    kept: list[object] = ["--moved", tmp_path / "plain", tmp_path / "yarn", "--data", tmp_path / "data"]
    kept += ["--needed", tmp_path / "needed", "--earlier", tmp_path / "removed" / "sparse_context_losses"]
    run(length_failures, *kept, "--out", tmp_path / "kept")
    targets = pd.read_parquet(tmp_path / "kept" / distance.MOVED_FILE)

    plain = Results(tmp_path / "plain").frame("length_interference")
    distant = set(plain["distant_document_id"].dropna())
    assert len(targets) == 3 * (7 - len(distant)) and not set(targets["document_id"]) & distant
    first = targets.iloc[0]
    of_first = plain[
        (plain["document_id"] == first["document_id"])
        & (plain["target_position"] == first["target_position"])
    ].set_index("placement")
    assert first["KL plain 40"] == pytest.approx(of_first.loc["own:all+40", "divergence"])
    assert first["loss plain near"] == pytest.approx(of_first.loc["near", "loss"])
    assert first["entropy"] == pytest.approx(of_first.loc["near", "entropy"])
    assert first["KL plain swapped"] == pytest.approx(of_first.loc["swap:all", "divergence"].mean())
    assert np.exp(first["log_total_effect"]) == pytest.approx(first["KL plain swapped"])
    assert first["KL yarn:2 40"] != pytest.approx(first["KL plain 40"], rel=1e-3)
    for folder, name in (("needed", "mean_log2_k"), ("removed", distance.BY_REMOVAL)):
        sparsity = Results(tmp_path / folder).frame("dependency_sparsity")
        expected = sparsity[(sparsity["criterion"] == "divergence") & (sparsity["rule"] == distance.RULE)]
        both = targets.merge(expected, on=distance.KEYS, suffixes=("", "_expected"))
        assert len(both) == len(targets)
        np.testing.assert_allclose(both[name], both["mean_log2_k_expected"], atol=1e-5)
        if folder == "needed":
            of_swaps_T4 = np.stack(both["mean_log2_k_of_swaps"])
            of_halves_T2 = of_swaps_T4.reshape(-1, 2, 2).mean(axis=2)
            np.testing.assert_allclose(both[distance.HALVES], of_halves_T2, atol=1e-5)
    # By hand: 1 - KL(full || gap) / KL(full || near).
    shares = distance.with_shares(targets)
    assert shares["kept plain 40"][0] == pytest.approx(1 - first["KL plain 40"] / first["KL plain near"])
    assert shares["kept yarn:2 0"].tolist() == pytest.approx([1] * len(shares), abs=1e-4)
    of_loss = distance.with_shares(targets, "swapped", "loss")["kept plain 40"][0]
    near, at_gap, at_0 = (first[f"loss plain {place}"] for place in ("swapped", "40", "0"))
    assert of_loss == pytest.approx((near - at_gap) / (near - at_0))
