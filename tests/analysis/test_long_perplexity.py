"""LongPPL by hand, against the published algorithm run from text to number, and its figure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from measured_documents import DOCUMENTS, LONG, SHORT, TARGET_POSITIONS, measure, write_checkpoint, write_data
from olmo.model import OLMo

from analysis.tokens import long_perplexity
from pipeline import loss_differences as loss_differences_stage
from pipeline.cli import InputError
from pipeline.results.read import read_artefact


def targets(model: str = "m", **columns: Any) -> pd.DataFrame:
    num_targets = len(columns["long_context_loss"])
    places = {"model": model, "chunk_index": 0, "target_position": range(num_targets)}
    windowed = {"windowed_short_context_loss": np.nan}
    return pd.DataFrame({**places, **windowed, **columns})


@pytest.fixture
def by_hand() -> pd.DataFrame:
    """Six targets of two documents: LSD 3, 2, 3, 3, 1, 5, and 3, 2, 2, 1, 3, 5 from shared windows."""
    return targets(
        document_id=["a", "a", "a", "b", "b", "b"],
        long_context_loss=[1.0, 1.0, 2.0, 0.0, 1.0, 7.0],
        short_context_loss=[4.0, 3.0, 5.0, 3.0, 2.0, 12.0],
        windowed_short_context_loss=[4.0, 3.0, 4.0, 1.0, 4.0, 12.0],
    )


def test_key_tokens_by_hand(by_hand: pd.DataFrame) -> None:
    for short_context, alpha, beta, places in (
        ("exact", 2, -2, [0, 3]),  # at place 1 LSD is alpha, at 2 LCL is beta, and neither is above
        ("exact", 1.5, -2, [0, 1, 3]),
        ("exact", 2, float("-inf"), [0, 2, 3, 5]),
        ("windowed", 2, -2, [0, 4]),
    ):
        is_key = long_perplexity.is_key_token(by_hand, short_context, alpha, beta)
        assert is_key[is_key].index.tolist() == places, (short_context, alpha, beta)


def test_long_perplexity_by_hand(by_hand: pd.DataFrame) -> None:
    exact, windowed = long_perplexity.long_perplexities(by_hand).to_dict("records")
    assert (exact["short_context"], windowed["short_context"]) == ("exact", "windowed")
    assert (exact["num_key_tokens"], windowed["num_key_tokens"]) == (2, 2)
    assert exact["perplexity"] == pytest.approx(np.exp(12 / 6))
    assert exact["long_perplexity"] == pytest.approx(np.exp(1 / 2))  # losses 1 and 0
    assert windowed["long_perplexity"] == pytest.approx(np.exp(1))  # losses 1 and 1
    # Documents with mean losses 1 and 0: an error of 1/2, times t at one degree of freedom.
    interval = exact["long_perplexity_low"], exact["long_perplexity_high"]
    assert interval == pytest.approx((np.exp((1 - 12.7062047) / 2), np.exp((1 + 12.7062047) / 2)))


def test_agreement_by_hand(by_hand: pd.DataFrame) -> None:
    (row,) = long_perplexity.key_token_agreement(by_hand).to_dict("records")
    assert (row["num_exact"], row["num_windowed"], row["num_both"]) == (2, 2, 1)  # {0 3} and {0 4}
    assert row["jaccard"] == pytest.approx(1 / 3)


def test_windowing_differences_by_hand(by_hand: pd.DataFrame) -> None:
    (row,) = long_perplexity.windowing_differences(by_hand).to_dict("records")
    assert row["loss_difference"] == pytest.approx(17 / 6)
    assert row["windowed_loss_difference"] == pytest.approx(16 / 6)
    # Differences 0, 0, 1 in document a and 2, -2, 0 in b: their means are 1/3 and 0.
    assert row["windowing_difference"] == pytest.approx(1 / 6)
    interval = (row["windowing_difference_low"], row["windowing_difference_high"])
    assert interval == pytest.approx(((1 - 12.7062047) / 6, (1 + 12.7062047) / 6))
    assert row["mean_absolute_difference"] == pytest.approx(5 / 6)


def test_another_model_may_choose_the_key_tokens(by_hand: pd.DataFrame) -> None:
    other = targets(
        "other", document_id=by_hand["document_id"], long_context_loss=[5.0, 0.0, 0.0, 4.0, 0.0, 0.0],
        short_context_loss=[0.0] * 6,
    )  # fmt: skip
    both = pd.concat([by_hand, other])
    exact = long_perplexity.long_perplexities(both, evaluator="m").query("short_context == 'exact'")
    long = exact.set_index("model")["long_perplexity"]
    assert long.to_dict() == pytest.approx({"m": np.exp(0.5), "other": np.exp(4.5)})
    own = long_perplexity.long_perplexities(both).set_index(["model", "short_context"])
    assert own["num_key_tokens"].to_dict() == {("m", "exact"): 2, ("m", "windowed"): 2, ("other", "exact"): 0}
    with pytest.raises(InputError, match="unknown evaluator 'n'; valid: m, other"):
        long_perplexity.long_perplexities(both, evaluator="n")
    elsewhere = pd.concat([by_hand, other.assign(chunk_index=1)])
    with pytest.raises(InputError, match="'other' and the evaluator 'm' have no target in common"):
        long_perplexity.long_perplexities(elsewhere, evaluator="m")


def published_key_tokens(
    model: OLMo, text: np.ndarray, trunc_len: int, sliding_window: int, alpha: float, beta: float
) -> dict[int, float]:
    """LongPPL's key tokens of one text as Fang et al. describe them: place -> loss under the whole text."""

    def losses(first: int, end: int) -> list[float]:
        tokens = torch.as_tensor(text[first:end].astype(np.int64))
        with torch.inference_mode():
            log_probs = model(tokens[None, :-1]).logits[0].log_softmax(-1)
        return (-log_probs.gather(1, tokens[1:, None])[:, 0]).tolist()

    long = [None, *losses(0, len(text))]
    found = {}
    for start in range(0, len(text) - trunc_len, sliding_window):
        end = min(start + trunc_len + sliding_window, len(text))
        short = [None, *losses(start, end)]
        for place in range(start + trunc_len, end):
            if short[place - start] - long[place] > alpha and -long[place] > beta:
                found[place] = long[place]
    return found


@pytest.mark.parametrize("stride", [1, 3])
def test_from_text_to_number_it_is_the_published_algorithm(
    tmp_path: Path, make_olmo: Callable[..., OLMo], stride: int
) -> None:
    # Targets are all tokens of a chunk that have a far context; the one before them has an LSD of 0.
    alpha, beta = 0.1, -4.0
    write_data(tmp_path / "data")
    write_checkpoint(tmp_path / "run", make_olmo(seed=3))
    flags = ["--windowed-stride", str(stride), "--targets-per-chunk", str(LONG - SHORT - 1)]
    results = measure(loss_differences_stage, tmp_path, *flags)
    rows = read_artefact(results, "loss_differences", long_perplexity.COLUMNS)
    published = {}
    for document_id, chunk_index in dict.fromkeys((row[0], row[1]) for row in TARGET_POSITIONS):
        text = DOCUMENTS[document_id][chunk_index * LONG : (chunk_index + 1) * LONG]
        key_tokens = published_key_tokens(make_olmo(seed=3), text, SHORT, stride, alpha, beta)
        published |= {(document_id, chunk_index * LONG + place): key_tokens[place] for place in key_tokens}
    assert 5 < len(published) < len(rows) - 5
    found = rows[long_perplexity.is_key_token(rows, "windowed", alpha, beta)]
    assert list(zip(found["document_id"], found["target_position"], strict=True)) == list(published)
    table = long_perplexity.long_perplexities(rows, alphas=[alpha], betas=[beta]).set_index("short_context")
    expected = np.exp(np.mean(list(published.values())))
    assert table.loc["windowed", "long_perplexity"] == pytest.approx(expected, rel=1e-5)
    if stride == 1:  # windows of their own are exact windows
        assert table.loc["exact", "num_key_tokens"] == len(published)
        assert table.loc["exact", "long_perplexity"] == pytest.approx(expected, rel=1e-5)
