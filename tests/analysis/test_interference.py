"""Length interference, and distance set by hand: planted slopes are found, rules and rows by hand."""

from dataclasses import astuple
from io import StringIO
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from hugging_face_families import make_model
from measured_documents import VOCABULARY_SIZE, run, word_tokenizer, write_folder
from sparsity_length.analysis.reference import length_failures
from sparsity_length.programs import influential_tokens, length_interference

from sparsity_length.figures import distance, interference, reach, read
from sparsity_length.results.read import Results
from sparsity_length.text.folder import EvaluationDocument, TokenizedData
from sparsity_length.text.tokenizer import DocumentTokenizer


def targets_of(ratio: float) -> pd.DataFrame:
    """Interference rises by `ratio` per doubling, on log scale, and with entropy and the total effect."""
    rng = np.random.default_rng(0)
    texts = np.repeat(np.arange(60), 16)
    size = len(texts)
    entropy = rng.uniform(0, 5, size)
    effect = rng.exponential(0.5, size)
    stake = rng.exponential(1.0, size)
    sparsity = 3 + 0.5 * np.log(effect) + rng.normal(0, 1, size)
    of_text = 0.2 * rng.normal(size=60)[texts]
    mean = np.exp(-2 + ratio * sparsity + 0.2 * entropy + 0.3 * np.log(stake) + of_text)
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
            "source": rng.choice(["C4", "Wikipedia"], 60)[texts],
            "far": mean * rng.gamma(2, 0.5, size),
            "near": rng.gamma(2, 0.02, size),
        }
    )


@pytest.mark.parametrize(
    ("planted", "words"),
    [(0.0, ["refuted", "inconclusive"]), (0.2, ["supported"]), (-0.2, ["refuted"])],
)
def test_planted_slopes_are_found(planted: float, words: list[str]) -> None:
    targets = targets_of(planted)
    found = interference.slope("far", "ratio", targets)
    assert found["slope_high"] - 0.2 < found["slope_low"] < planted < found["slope_high"]
    assert interference.verdict(interference.slopes(targets, "far", "near")).split(",")[0] in words


@pytest.mark.parametrize(
    ("p_value", "changed", "verdict"),
    [
        (0.001, {}, "supported"),
        (0.06, {}, "inconclusive"),
        (0.001, {"control": (-0.1, 0.09)}, "supported, length-specific"),
        (0.001, {"share": (-0.2, -0.1)}, "inconclusive"),
        (0.001, {"lowest": (-0.05, 0.3)}, "inconclusive"),
        (0.001, {"ratio": (-0.3, -0.1), "nats": (-0.2, -0.1), "lowest": (-0.3, -0.1)}, "refuted"),
        (0.5, {**dict.fromkeys(["ratio", "nats", "share"], (-0.02, 0.04)), "lowest": (0.0, 0.1)}, "refuted"),
    ],
)
def test_the_rule(p_value: float, changed: dict[str, tuple[float, float]], verdict: str) -> None:
    of = {  # intervals of slopes
        "ratio": (0.1, 0.3),
        "nats": (0.1, 0.2),
        "share": (-0.1, 0.1),
        "lowest": (0.05, 0.3),
        "control": (0.0, 0.2),
        **changed,
    }
    table = pd.DataFrame(
        [
            ("as planned", "ratio", *of["ratio"], p_value),
            ("as planned", "nats", *of["nats"], p_value),
            ("as planned", "share", *of["share"], p_value),
            ("lowest eighth left out", "ratio", *of["lowest"], 0.001),
            ("highest eighth left out", "ratio", 0.05, 0.3, 0.001),
            ("negative control", "ratio", *of["control"], 0.001),
        ],
        columns=["variant", "kind", "slope_low", "slope_high", "holm_p_value"],
    )
    assert interference.verdict(table.eval("slope = (slope_low + slope_high) / 2")) == verdict


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six texts from three sources: other text and tokens needed with 48 near tokens; tokens by removal."""
    folder = tmp_path_factory.mktemp("real_model")
    model = make_model("llama", vocab_size=VOCABULARY_SIZE, max_position_embeddings=256)
    model.save_pretrained(folder / "model")
    rng = np.random.default_rng(0)
    documents = [
        EvaluationDocument(f"{number:016x}", rng.integers(1, VOCABULARY_SIZE, 60, dtype=np.int32), source)
        for number, source in enumerate(2 * ["c4", "wikipedia", "novels"])
    ]
    write_folder(folder / "data", documents, DocumentTokenizer(word_tokenizer(), eos_token_id=0))
    near = "--near-context-length 48 --share-near --placements last:4 swap:16@16 swap:16@64 swap:16@96"
    measure(length_interference, folder, "short", *near.split())
    # With a screen, every number of tokens up to all.
    measure(influential_tokens, folder, "removed", *NEEDED, "--ablation", "mask", "--screen", 16)
    return folder


NEEDED = (
    f"--short-context-length 8 --k 1 4 16 --minimum-gain 0 --null-fraction 1e-9"
    f" --rules {interference.RULE} recency"
).split()


def measure(stage: ModuleType, folder: Path, results: str, *flags: object) -> None:
    """Three targets of each text, by the model beside the texts."""
    words = ["--data", folder / "data", "--checkpoints", folder / "model", "--results", folder / results]
    chunks = "--long-context-length 49 --targets-per-chunk 24 --target-stride 8 --max-chunks-per-document 1"
    run(stage, *words, *chunks.split(), *flags)


def sparsity_of(results: Path) -> pd.DataFrame:
    """How many tokens each target needs, by KL and by the rule that the figures take."""
    only = {"criterion": ["divergence"], "rule": [interference.RULE]}
    return Results(results).frame("dependency_sparsity", only=only).set_index(interference.KEYS)


def test_targets_hold_what_was_measured_of_them(measured: Path) -> None:
    data = TokenizedData.open(measured / "data")
    targets = interference.interference_targets(measured / "short", measured / "removed", data)
    rows = Results(measured / "short").frame("length_interference")
    sources = {document.document_id: document.url for document in data.evaluation_documents()}
    # Three targets per text; those that are distant for others are none of the study's.
    counted = targets.value_counts(["document_id", "source"]).to_dict()
    assert counted == {text: 3 for text in sources.items() if text[0] not in {*rows["distant_document_id"]}}
    first = targets.assign(far=interference.mean_interference(targets, "swap:16@96")).iloc[0]
    of_first = rows.merge(first[interference.KEYS].to_frame().T).set_index("placement")
    needed = sparsity_of(measured / "removed").loc[tuple(first[interference.KEYS])]
    expected = {
        "loss": of_first.loc["near", "loss"],
        "entropy": of_first.loc["near", "entropy"],
        "mean_log2_k": needed["mean_log2_k"],
        "total_effect": needed["gain"],
        "far": of_first.loc["swap:16@96", "divergence"].mean(),
    }
    assert first[[*expected]].to_dict() == pytest.approx(expected)
    places = interference.mechanism(targets)[["num_distant", "near_start"]].drop_duplicates()
    assert places.to_numpy().tolist() == [[16, 16], [16, 64], [16, 96]]


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
            "swap:10240 c4": h,
            "swap:512@10240 c4": 2 * h,
            "swap:11776 c4": h,
            "swap:512@11776 c4": 2 * h,
        }
    )
    assert "is a fair proxy" in interference.natural_check(targets)
    for column, values in {"swap:512@10240 c4": rng.permutation(h), "own:11776": 3.05}.items():
        assert "no fair proxy" in interference.natural_check(targets.assign(**{column: values}))


@pytest.mark.parametrize(
    ("near", "middle", "verdict"),
    [(0.1, 0.2, "supported"), (0.1, 0.6, "refuted"), (0.1, 0.3, "inconclusive")],
)
def test_other_text_where_it_is_read_is_compared_with_unseen_distances(
    near: float, middle: float, verdict: str
) -> None:
    unseen = np.random.default_rng(0).exponential(1, 600)
    targets = {"document_id": np.repeat(np.arange(60), 10).astype(str)}
    for placement, share in zip((*interference.READ, interference.UNSEEN), (near, middle, 1), strict=True):
        targets |= {f"{placement} c4": share * unseen, f"{placement} novels": share * unseen}
    word, ratios = interference.where_read(pd.DataFrame(targets))
    assert word == verdict
    assert [ratio.estimate for ratio in ratios.values()] == pytest.approx([near, middle])


GAPS = {reach.PLAIN: {2048: 0.5, 4096: 0.2, 9216: -0.4}, reach.YARN: {2048: 0.6, 4096: 0.5, 9216: 0.1}}
# Per doubling: 2 points at 2,048 and 4,096; at 9,216 another 10% of the mean fall from 4,096, which is 0.6.
SLOPES = {2048: -0.02, 4096: -0.02, 9216: -0.02 - 0.1 * 0.6}


def planted_targets(times: float, seed: int, num_texts: int, noise: float) -> pd.DataFrame:
    """Slopes of so many times the smallest effect; those of the controls are larger, and not straight."""
    rng = np.random.default_rng(seed)
    texts = np.repeat(np.arange(num_texts), 8)
    size = len(texts)
    log_effect = rng.normal(-0.5, 0.7, size)
    entropy = rng.uniform(0, 5, size)
    needed = 6 + (log_effect + 0.5) + 0.3 * (entropy - 2.5) + rng.normal(0, 1.2, size)
    worth = 0.7 * np.exp(log_effect + rng.normal(0, 0.2, size))
    of_controls = 0.1 * np.sin(2 * log_effect) + 0.02 * entropy + 0.03 * rng.normal(size=num_texts)[texts]
    targets = {
        "document_id": texts.astype(str),
        "source": np.where(texts % 2, "c4", "novels"),
        "entropy": entropy,
        "log_total_effect": log_effect,
        "mean_log2_k": needed,
        **{name: needed + rng.normal(0, 1, size) for name in distance.HALVES},
        distance.BY_REMOVAL: needed,
    }
    for rope, shares in GAPS.items():
        lost = {"near": worth, "swapped": np.exp(log_effect), "0": np.zeros(size)}
        for gap, slope in SLOPES.items():
            of_tokens = times * slope * (needed - 6) * (rope == reach.PLAIN)
            kept = shares[gap] + of_tokens + of_controls + rng.normal(0, noise, size)
            lost[str(gap)] = worth * (1 - kept)
        for place, values in lost.items():
            targets |= {f"KL {rope} {place}": values, f"loss {rope} {place}": 3 + values}
    return pd.DataFrame(targets)


def test_planted_slopes_are_returned() -> None:
    drawn = [
        distance.known_targets(planted_targets(2, seed, 24, noise=0.05), "mean_log2_k") for seed in range(16)
    ]
    planted = {distance.TRAINED: -0.04, distance.UNSEEN: 0.2, distance.READABLE: -2 * SLOPES[9216]}
    for name, expected in planted.items():
        values = distance.OUTCOMES[name].values
        found = np.array([distance.slope(values, "mean_log2_k", targets)["slope"] for targets in drawn])
        # Clipping and winsorizing take a few percent of a slope.
        assert abs(found.mean() - expected) < 3 * found.std() / np.sqrt(16) + 0.05 * abs(expected)
    # The jackknife's interval, of the last outcome, is about that of CR2.
    by_jackknife, by_formula = (
        read.interval_of(one(values, "mean_log2_k", drawn[-1]), "slope")
        for one in (distance.jackknifed, distance.slope)
    )
    assert astuple(by_jackknife) == pytest.approx(
        astuple(by_formula), abs=0.1 * (by_formula.high - by_formula.low)
    )


@pytest.mark.parametrize(("times", "word"), [(4, "supported"), (0, "refuted")])
def test_a_strong_effect_is_supported_and_none_is_refuted(times: float, word: str) -> None:
    targets = distance.known_targets(planted_targets(times, 0, 12, noise=0.02), "mean_log2_k")
    assert distance.verdict(distance.slopes(targets, "mean_log2_k")) == word


@pytest.mark.parametrize(
    ("of_outcomes", "word"),
    [
        (["supported", "supported", "inconclusive"], "inconclusive"),
        (["supported", "inconclusive", "supported"], "inconclusive"),
        (["refuted", "refuted", "supported"], "refuted"),
        (["refuted", "inconclusive", "refuted"], "inconclusive"),
    ],
)
def test_the_claim_needs_all_outcomes(of_outcomes: list[str], word: str) -> None:
    assert distance.verdict(pd.DataFrame({"outcome": [*distance.OUTCOMES], "word": of_outcomes})) == word


def test_the_rule_of_one_outcome() -> None:
    table = pd.read_csv(
        StringIO("""
        outcome slope_low slope_high holm_p_value word
        trained     -0.06      -0.03         0.01 supported
        trained     -0.06      -0.01         0.01 inconclusive
        trained     -0.06      -0.03         0.06 inconclusive
        trained     -0.01       0.01         1    refuted
        trained      0.01       0.05         1    refuted
        trained     -0.01       0.03         1    inconclusive
        unseen       0.12       0.3          0.01 supported
        unseen       0.12       0.3          0.06 inconclusive
        unseen      -0.09       0.09         1    refuted
        unseen      -0.3       -0.01         1    refuted
        unseen      -0.3        0.05         1    inconclusive
        """),
        sep=r"\s+",
    ).assign(p_value=0.5)
    assert [distance._word(row) for row in table.to_dict("records")] == table["word"].tolist()


def test_reliability_shape_and_figure() -> None:
    targets = distance.known_targets(planted_targets(4, 0, 40, noise=0.05), "mean_log2_k")
    # The predictor has a standard deviation of 1.5 or so, and each half an error of 1.
    variance = targets["mean_log2_k"].var()
    expected = [variance / (variance + error) for error in (1, 0.5)]
    assert distance.reliability(targets) == pytest.approx(expected, abs=0.05)
    all_kept = distance.curves(targets).set_index(["rope", "gap"])
    assert (all_kept.loc[(reach.PLAIN, 0), ["kept", "kept_KL", "kept_loss"]] == 1).all()
    assert all_kept.loc[(reach.YARN, 4096), "kept_KL"] == pytest.approx(0.5, abs=0.1)
    distance.moved_figure(targets, "mean_log2_k")


@pytest.mark.parametrize(("known", "name"), [(24, "mean_log2_k"), (23, distance.BY_REMOVAL)])
def test_few_texts_with_the_first_predictor_leave_the_second_one_to_decide(known: int, name: str) -> None:
    of_texts = pd.DataFrame({"document_id": range(30), "mean_log2_k": [4.0] * known + [None] * (30 - known)})
    assert distance.predictor_of(of_texts) == name


def test_moved_targets_hold_what_was_measured_of_them(measured: Path) -> None:
    placed = "--near-context-length 8 --compared-with full --placements own:all own:all+40 swap:all"
    measure(length_interference, measured, "plain", *placed.split())
    measure(length_interference, measured, "yarn", *placed.split(), "--rope", "yarn:2")
    measure(influential_tokens, measured, "swaps", *NEEDED, "--trial-swaps", 4)
    moved = ["--data", measured / "data", "--moved", measured / "plain", measured / "yarn"]
    needed = ["--needed", measured / "swaps", "--earlier", measured / "removed" / "sparse_context_losses"]
    run(length_failures, *moved, *needed, "--out", measured / "kept")
    targets = pd.read_parquet(measured / "kept" / distance.MOVED_FILE).set_index(distance.KEYS)

    plain = Results(measured / "plain").frame("length_interference").set_index(distance.KEYS)
    distant = plain["distant_document_id"].dropna().unique()
    assert len(targets) == 3 * (6 - len(distant)) and not {*targets.index.levels[0]} & {*distant}
    first = targets.iloc[0]
    of_first = plain.loc[[first.name]].set_index("placement")
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
    by_removal, by_swaps = (
        sparsity_of(measured / results).loc[targets.index] for results in ("removed", "swaps")
    )
    of_halves_T2 = np.stack(by_swaps["mean_log2_k_of_swaps"]).reshape(-1, 2, 2).mean(axis=2)
    needed_T4 = np.column_stack([by_removal["mean_log2_k"], by_swaps["mean_log2_k"], of_halves_T2])
    np.testing.assert_allclose(
        targets[[distance.BY_REMOVAL, "mean_log2_k", *distance.HALVES]], needed_T4, atol=1e-5
    )
    np.testing.assert_allclose(distance.with_shares(targets)["kept yarn:2 0"], 1, atol=1e-4)
    of_loss = distance.with_shares(targets, "swapped", "loss")["kept plain 40"].iloc[0]
    near, at_gap, at_0 = (first[f"loss plain {place}"] for place in ("swapped", "40", "0"))
    assert of_loss == pytest.approx((near - at_gap) / (near - at_0))
