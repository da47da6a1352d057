"""Slopes of length interference: planted ones are found, the rule by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from measured_documents import write_checkpoint
from olmo.model import OLMo
from sparsity_length.analysis import run_notebooks
from sparsity_length.programs import influential_tokens, length_interference, tokenize_c4

from sparsity_length.figures import interference
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


def row(variant: str, kind: str, low: float, high: float, p_value: float = 0.001) -> tuple[object, ...]:
    return variant, kind, (low + high) / 2, low, high, p_value


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
        row("as planned", "ratio", *ratio, p_value),
        row("as planned", "nats", *nats, p_value),
        row("as planned", "share", *share, p_value),
        row("lowest eighth left out", "ratio", *lowest),
        row("highest eighth left out", "ratio", 0.05, 0.3),
        row("negative control", "ratio", *control),
    ]
    table = pd.DataFrame(
        rows, columns=["variant", "kind", "slope", "slope_low", "slope_high", "holm_p_value"]
    )
    assert interference.verdict(table) == verdict


def run(program: ModuleType, *words: object) -> None:
    program.STAGE(list(map(str, words)))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, make_olmo: Callable[..., OLMo]) -> Path:
    """Nine texts from three sources, three targets each, 48 near tokens; the last three are distant texts."""
    folder = tmp_path_factory.mktemp("real_model")
    rng = np.random.default_rng(0)
    sources = ["c4", "wikipedia", "novels"]
    rows = [{"text": "".join(rng.choice(list("abcdefgh "), 300)), "url": source} for source in 4 * sources]
    for name, of in (("texts", rows[:9]), ("train", rows[9:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of))
    words: list[object] = ["--source", folder / "train.jsonl", "--evaluation-source", folder / "texts.jsonl"]
    run(tokenize_c4, "--out", folder / "data", *words, "--tokenizer", "bpe:257")
    write_checkpoint(
        folder / "model", make_olmo(seed=2, vocab_size=257, embedding_size=257, max_sequence_length=256)
    )
    flags: list[object] = ["--data", folder / "data", "--checkpoints", folder / "model"]
    flags += [
        "--long-context-length",
        49,
        "--targets-per-chunk",
        24,
        "--target-stride",
        8,
        "--max-chunks-per-document",
        1,
    ]
    placements = ["last:4", *(f"swap:16@{start}" for start in (16, 64, 96))]
    near: list[object] = ["--near-context-length", 48, "--share-near"]
    run(length_interference, *flags, *near, "--results", folder / "short", "--placements", *placements)
    ks: list[object] = ["--short-context-length", 8, "--k", 1, 2, 4, 16]
    rules: list[object] = ["--ablation", "mask", "--rules", interference.RULE, "--null-fraction", 1e-9]
    run(influential_tokens, *flags, *ks, *rules, "--minimum-gain", 0, "--results", folder / "needed")
    return folder


def test_targets_hold_what_was_measured_of_them(measured: Path) -> None:
    data = TokenizedData.open(measured / "data")
    targets = interference.interference_targets(measured / "short", measured / "needed", data)
    rows = Results(measured / "short").frame("length_interference")
    distant = set(rows["distant_document_id"].dropna())
    sources = {document.document_id: document.url for document in data.evaluation_documents()}
    # Three targets a text; those that are distant for others are none of the study's.
    assert len(targets) == 3 * (len(sources) - len(distant)) and not set(targets["document_id"]) & distant
    assert targets["source"].tolist() == [sources[name] for name in targets["document_id"]]
    first = targets.iloc[0]
    of_first = rows[
        (rows["document_id"] == first["document_id"]) & (rows["target_position"] == first["target_position"])
    ]
    far = of_first[of_first["placement"] == "swap:16@96"]
    assert interference.mean_interference(targets, "swap:16@96")[0] == pytest.approx(
        far["divergence"].mean(), abs=1e-6
    )
    (near,) = of_first[of_first["placement"] == "near"].itertuples()
    assert (first["loss"], first["entropy"]) == pytest.approx((near.loss, near.entropy))
    needed = (
        Results(measured / "needed").frame("dependency_sparsity").merge(first[interference.KEYS].to_frame().T)
    )
    (of_target,) = needed[needed["criterion"] == "divergence"].itertuples()
    expected = (of_target.mean_log2_k, of_target.gain)
    assert (first["mean_log2_k"], first["total_effect"]) == pytest.approx(expected)
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
