"""Length interference, and distance set by hand: planted slopes are found, rules and rows by hand."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hugging_face_families import make_model
from measured_documents import run, write_checkpoint
from olmo.model import OLMo
from sparsity_length.analysis import run_notebooks
from sparsity_length.analysis.reference import length_failures
from sparsity_length.programs import influential_tokens, length_interference, tokenize_c4

from sparsity_length.figures import distance, interference
from sparsity_length.figures.reach import PLAIN, YARN
from sparsity_length.results.read import Results
from sparsity_length.text.folder import TokenizedData


def targets_of(ratio: float, seed: int = 0, num_texts: int = 60) -> pd.DataFrame:
    """Interference rises by `ratio` per doubling, on log scale, and with entropy and the total effect."""
    rng = np.random.default_rng(seed)
    texts = np.repeat(np.arange(num_texts), 16)
    size = len(texts)
    entropy = rng.uniform(0, 5, size)
    effect = rng.exponential(0.5, size)
    stake = rng.exponential(1.0, size)
    sparsity = 3 + 0.5 * np.log(effect) + rng.normal(0, 1, size)
    mean = np.exp(
        -2 + ratio * sparsity + 0.2 * entropy + 0.3 * np.log(stake) + 0.2 * rng.normal(size=num_texts)[texts]
    )
    return pd.DataFrame(
        {
            "document_id": texts.astype(str),
            "mean_log2_k": sparsity,
            "entropy": entropy,
            "total_effect": effect,
            "log_total_effect": np.log(effect),
            "stake": stake,
            "log_stake": np.log(stake),
            "log_trained": rng.normal(-3, 1, size),
            "log_token_count": rng.normal(8, 2, size),
            "loss": rng.exponential(3, size),
            "source": rng.choice(["C4", "Wikipedia"], num_texts)[texts],
            "far": mean * rng.gamma(2, 0.5, size),
            "near": rng.gamma(2, 0.02, size),
        }
    )


@pytest.mark.parametrize("planted", [0.0, 0.2, -0.2])
def test_planted_slopes_are_found(planted: float) -> None:
    found = interference.slope("far", "ratio", targets_of(planted))
    assert found["slope_low"] < planted < found["slope_high"]
    assert found["slope_high"] - found["slope_low"] < 0.2
    table = interference.slopes(targets_of(planted), "far", "near")
    assert (
        interference.verdict(table).split(",")[0]
        in {0.2: ("supported",), -0.2: ("refuted",), 0.0: ("refuted", "inconclusive")}[planted]
    )


@pytest.mark.parametrize(
    ("ratio", "nats", "share", "lowest", "control", "verdict"),
    [
        ((0.1, 0.3), (0.1, 0.2), (-0.1, 0.1), (0.05, 0.3), (0.0, 0.2), "supported"),
        ((0.1, 0.3), (0.1, 0.2), (-0.1, 0.1), (0.05, 0.3), (-0.1, 0.09), "supported, length-specific"),
        ((0.1, 0.3), (0.1, 0.2), (-0.2, -0.1), (0.05, 0.3), (0.0, 0.2), "inconclusive"),
        ((0.1, 0.3), (0.1, 0.2), (-0.1, 0.1), (-0.05, 0.3), (0.0, 0.2), "inconclusive"),
        ((-0.3, -0.1), (-0.2, -0.1), (-0.1, 0.1), (-0.3, -0.1), (0.0, 0.2), "refuted"),
        ((-0.02, 0.04), (-0.02, 0.04), (-0.02, 0.04), (0.0, 0.1), (0.0, 0.2), "refuted"),
    ],
)
def test_the_rule(
    ratio: object, nats: object, share: object, lowest: object, control: object, verdict: str
) -> None:
    p_value = 0.5 if ratio == (-0.02, 0.04) else 0.001
    rows = [
        ("as planned", "ratio", *ratio, p_value),
        ("as planned", "nats", *nats, p_value),
        ("as planned", "share", *share, p_value),
        ("lowest eighth left out", "ratio", *lowest, 0.001),
        ("highest eighth left out", "ratio", 0.05, 0.3, 0.001),
        ("negative control", "ratio", *control, 0.001),
    ]
    table = pd.DataFrame(rows, columns=["variant", "kind", "slope_low", "slope_high", "holm_p_value"])
    table["slope"] = (table["slope_low"] + table["slope_high"]) / 2
    assert interference.verdict(table) == verdict


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, make_olmo: Callable[..., OLMo]) -> Path:
    """Nine texts from three sources, three targets each, 48 near tokens; the last three are distant texts."""
    folder = tmp_path_factory.mktemp("real_model")
    fields = {"vocab_size": 257, "embedding_size": 257, "max_sequence_length": 256}
    write_checkpoint(folder / "model", make_olmo(seed=2, **fields))
    flags = write_letters(folder, 4 * ["c4", "wikipedia", "novels"], 9)
    flags += ["--checkpoints", folder / "model"]
    placements = ["last:4", *(f"swap:16@{start}" for start in (16, 64, 96))]
    near = ["--near-context-length", 48, "--share-near", "--placements", *placements]
    run(length_interference, *flags, *near, "--results", folder / "short")
    few = ["--short-context-length", 8, "--k", 1, 2, 4, 16, "--minimum-gain", 0, "--null-fraction", 1e-9]
    few += ["--ablation", "mask", "--rules", interference.RULE]
    run(influential_tokens, *flags, *few, "--results", folder / "needed")
    return folder


def test_targets_hold_what_was_measured_of_them(measured: Path) -> None:
    data = TokenizedData.open(measured / "data")
    targets = interference.interference_targets(measured / "short", measured / "needed", data)
    rows = Results(measured / "short").frame("length_interference")
    distant = set(rows["distant_document_id"].dropna())
    sources = {document.document_id: document.url for document in data.evaluation_documents()}
    # Three targets per text; those that are distant for others are none of the study's.
    assert len(targets) == 3 * (len(sources) - len(distant)) and not set(targets["document_id"]) & distant
    assert targets["source"].tolist() == [sources[name] for name in targets["document_id"]]
    first = targets.iloc[0]
    key = first[interference.KEYS].to_frame().T
    of_first = rows.merge(key).set_index("placement")
    far = interference.mean_interference(targets, "swap:16@96")[0]
    assert far == pytest.approx(of_first.loc["swap:16@96", "divergence"].mean(), abs=1e-6)
    needed = Results(measured / "needed").frame("dependency_sparsity").merge(key).set_index("criterion")
    expected = {
        "loss": of_first.loc["near", "loss"],
        "entropy": of_first.loc["near", "entropy"],
        "mean_log2_k": needed.loc["divergence", "mean_log2_k"],
        "total_effect": needed.loc["divergence", "gain"],
    }
    assert first[[*expected]].to_dict() == pytest.approx(expected)
    table = interference.mechanism(targets)
    assert set(table["near_start"]) == {16, 64, 96} and (table["num_distant"] == 16).all()


def test_a_text_that_is_a_distant_one_counts_for_no_mean() -> None:
    targets = pd.DataFrame({"document_id": list("aabb"), "swap:64@7680 c4": [1.0, 3.0, np.nan, np.nan]})
    (row,) = interference.mechanism(targets).to_dict("records")
    assert (row["interference"], row["num_targets"], row["num_documents"]) == (2.0, 2, 1)


def test_the_natural_check_follows_its_rule() -> None:
    rng = np.random.default_rng(0)
    h = rng.exponential(1, 40)
    targets = pd.DataFrame(
        {
            "document_id": np.repeat(np.arange(10), 4).astype(str),
            "own:7680": 3.0,
            "own:11776": 3.3,
            "last:4": 1.0,
            "total_effect": 1.0,
            "swap:512@7680 c4": 0.1,
            **{f"swap:{start} c4": h for start in (10240, 11776)},
            **{f"swap:512@{start} c4": 2 * h for start in (10240, 11776)},
        }
    )
    assert "is a fair proxy" in interference.natural_check(targets)
    shuffled = targets.assign(**{"swap:512@10240 c4": rng.permutation(h)})
    assert "no fair proxy" in interference.natural_check(shuffled)
    assert "no fair proxy" in interference.natural_check(targets.assign(**{"own:11776": 3.05}))


@pytest.mark.slow
def test_the_notebook_draws_results_of_which_no_document_has_a_null(measured: Path, tmp_path: Path) -> None:
    words = ["--data", measured / "data", "--notebooks", "influential_tokens"]
    run(run_notebooks, "--results", measured / "needed", "--figures", tmp_path, *words)
    assert (tmp_path / "loss_against_k-model.png").exists()


@pytest.mark.parametrize(
    ("near", "middle", "verdict"),
    [(0.1, 0.2, "supported"), (0.1, 0.6, "refuted"), (0.1, 0.3, "inconclusive")],
)
def test_other_text_where_it_is_read_is_compared_with_unseen_distances(
    near: float, middle: float, verdict: str
) -> None:
    unseen = np.random.default_rng(0).exponential(1, 600)
    columns = {
        f"{placement} {source}": share * unseen
        for placement, share in zip((*interference.READ, interference.UNSEEN), (near, middle, 1), strict=True)
        for source in ("c4", "novels")
    }
    documents = np.repeat(np.arange(60), 10).astype(str)
    word, ratios = interference.where_read(pd.DataFrame({"document_id": documents, **columns}))
    assert word == verdict
    assert [ratio.estimate for ratio in ratios.values()] == pytest.approx([near, middle])


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
    for targets in drawn[:4]:
        for name in (distance.TRAINED, distance.UNSEEN):
            found = distance.jackknifed(distance.OUTCOMES[name].values, "mean_log2_k", targets)
            covers.append(found["slope_low"] < planted[name] < found["slope_high"])
            # As precise as the plan expects, and better: planted noise is smaller.
            assert found["slope_high"] - found["slope_low"] < 4 * distance.OUTCOMES[name].smallest
    # Of 8 intervals of 95%, 5 or fewer cover in one case of 170.
    assert sum(covers) >= 6


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


def test_moved_targets_hold_what_was_measured_of_them(tmp_path: Path) -> None:
    make_model("llama", vocab_size=257).save_pretrained(tmp_path / "llama")
    flags = write_letters(tmp_path, 4 * ["c4", "novels"], 7)
    flags += ["--checkpoints", tmp_path / "llama"]
    placed = [*flags, "--near-context-length", 8, "--compared-with", "full", "--placements"]
    placed += ["own:all", "own:all+40", "swap:all"]
    run(length_interference, *placed, "--results", tmp_path / "plain")
    run(length_interference, *placed, "--results", tmp_path / "yarn", "--rope", "yarn:2")
    few = [*flags, "--short-context-length", 8, "--rules", distance.RULE, "recency", "--minimum-gain", 0]
    few += ["--null-fraction", 1e-9, "--k", 1, 2, 4, 16]
    # With a screen, every number of tokens up to all.
    run(influential_tokens, *few, "--ablation", "mask", "--screen", 16, "--results", tmp_path / "removed")
    run(influential_tokens, *few, "--trial-swaps", 4, "--results", tmp_path / "needed")
    kept = ["--moved", tmp_path / "plain", tmp_path / "yarn", "--data", tmp_path / "data"]
    kept += ["--needed", tmp_path / "needed", "--earlier", tmp_path / "removed" / "sparse_context_losses"]
    run(length_failures, *kept, "--out", tmp_path / "kept")
    targets = pd.read_parquet(tmp_path / "kept" / distance.MOVED_FILE)

    plain = Results(tmp_path / "plain").frame("length_interference")
    distant = set(plain["distant_document_id"].dropna())
    assert len(targets) == 3 * (7 - len(distant)) and not set(targets["document_id"]) & distant
    first = targets.iloc[0]
    of_first = plain.merge(first[["document_id", "target_position"]].to_frame().T).set_index("placement")
    swapped = of_first.loc["swap:all", "divergence"].mean()
    expected = {
        "KL plain 40": of_first.loc["own:all+40", "divergence"],
        "loss plain near": of_first.loc["near", "loss"],
        "entropy": of_first.loc["near", "entropy"],
        "KL plain swapped": swapped,
        "log_total_effect": np.log(swapped),
    }
    assert first[[*expected]].to_dict() == pytest.approx(expected)
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


def write_letters(folder: Path, sources: Sequence[str], num_evaluated: int) -> list[object]:
    """A text from each source in `folder`/data, the last ones train; flags for three targets per text."""
    rng = np.random.default_rng(0)
    rows = [{"text": "".join(rng.choice(list("abcdefgh "), 300)), "url": source} for source in sources]
    for name, of in (("texts", rows[:num_evaluated]), ("train", rows[num_evaluated:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of))
    words = ["--source", folder / "train.jsonl", "--evaluation-source", folder / "texts.jsonl"]
    run(tokenize_c4, "--out", folder / "data", *words, "--tokenizer", "bpe:257")
    flags = ["--data", folder / "data", "--long-context-length", 49, "--targets-per-chunk", 24]
    return [*flags, "--target-stride", 8, "--max-chunks-per-document", 1]
