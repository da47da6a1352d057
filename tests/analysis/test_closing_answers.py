"""The closing answers: which measure tells them, what they say of planted results, what they miss."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_results import LONG_MODELS, write_results
from written_results import write_rows

from analysis import summary as closing_answers
from analysis.losses.token_worth import excess_over_null
from analysis.read import read_sparse_losses
from pipeline.results.read import read_artefact
from pipeline.results.write import StageOutput


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results that tell how their models were trained."""
    results = tmp_path_factory.mktemp("trained") / "results"
    write_results(results, scale=(1000, 50))
    return results


def losses(num_documents: int = 12) -> pd.DataFrame:
    """A gain of 1 nat, 0.5 expected, 0.75 lost where the far context is another document's."""
    documents = np.repeat(np.arange(num_documents), 2)
    jitter = 0.125 * (-1.0) ** documents  # of documents, so that intervals are not points
    return pd.DataFrame(
        {
            "model": "m", "document_id": documents.astype(str), "chunk_index": 0,
            "target_position": range(len(documents)), "loss_difference": 1 + jitter,
            "short_context_divergence": 0.5 + jitter, "specific_gain": 0.75 + jitter,
        }
    )  # fmt: skip


def test_worth_and_own_part_by_hand() -> None:
    assert closing_answers.worth_of_far_context(losses(), "m").startswith(
        "To m the far context is worth 1.000 [0.9"
    )
    assert "before it sees the token, 0.500 [0.4" in closing_answers.worth_of_far_context(losses(), "m")
    said = closing_answers.own_part(losses(), "m")
    assert "m loses 0.750 [0.6" in said
    assert "so much, 0.750 [0.7" in said


def test_what_earlier_results_lack_is_said() -> None:
    old = losses().assign(short_context_divergence=np.nan, specific_gain=np.nan)
    assert closing_answers.worth_of_far_context(old, "m").endswith("nats a token.")
    assert "was not measured: run loss_differences again" in closing_answers.own_part(old, "m")
    assert "was not measured" in closing_answers.own_part(old.drop(columns="specific_gain"), "m")


def test_no_share_of_a_gain_that_is_not_there() -> None:
    nothing = losses().assign(loss_difference=[0.5, -0.5] * 12)
    assert closing_answers.own_part(nothing, "m").endswith("too unclear for a share of it.")


def write_choices(results: Path, rules: list[str], intervention: str = "background") -> None:
    """Own tokens of each rule are worth 0.5 of a gain of 1 nat, foreign ones 0.125; k nearest k / 8."""
    rows = []
    for rule in rules:
        for k in (1, 2, 4, 8) if rule == "nearest" else (1, 2):
            worth = k / 8 if rule == "nearest" else 0.5
            for far_context, recovered in (("own", worth), ("other_document", 0.125)):
                rows.append(
                    losses().assign(
                        rule=rule, far_context=far_context, k=k, judge="m", short_context_loss=9.0,
                        long_context_loss=2.0, background_loss=3.0, sparse_context_loss=3.0 - recovered,
                    )
                )  # fmt: skip
    table = pd.concat(rows)
    write_rows(results, "loss_differences", "loss_differences", losses().assign(short_context_loss=3.0))
    output = StageOutput(
        results, "influential_tokens", "m", settings={"k": [1, 2], "intervention": intervention}, inputs={},
        num_shards=1,
    )  # fmt: skip
    columns = table.drop(columns=["model", "loss_difference", "specific_gain"])
    output.write_shard(0, {"sparse_context_losses": columns.to_dict("list")})


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (["nearest", "leave_one_out", "add_one_in_divergence"], "add_one_in_divergence"),
        (["add_one_in_divergence", "leave_one_out_divergence"], "leave_one_out_divergence"),
        (["leave_one_out", "leave_one_out_divergence", "random"], "leave_one_out_divergence"),
        (["leave_one_out", "nearest"], "leave_one_out"),
    ],
)
def test_the_measure_that_is_fooled_least_tells(tmp_path: Path, rules: list[str], told: str) -> None:
    write_choices(tmp_path, rules)
    chosen = closing_answers.chosen_measure(tmp_path)
    assert chosen is not None
    assert (chosen.model, chosen.rule, chosen.is_in_background) == ("m", told, True)


def test_controls_alone_tell_nothing(tmp_path: Path) -> None:
    write_choices(tmp_path, ["nearest", "random"])
    assert closing_answers.chosen_measure(tmp_path) is None
    assert any("run influential_tokens with" in answer for answer in closing_answers.answers(tmp_path))


def test_the_tokens_are_told_beyond_their_null_and_in_nearest_ones(tmp_path: Path) -> None:
    """0.5 - 0.125 nats of 1, as 3 nearest tokens would be worth: between 2 and 4."""
    write_choices(tmp_path, ["nearest", "leave_one_out", "add_one_in_divergence"])
    (said,) = (answer for answer in closing_answers.answers(tmp_path) if "far tokens" in answer)
    assert said.startswith("2 far tokens (add_one_in_divergence), put into another document's far context,")
    assert "give 0.375 [0.375, 0.375] nats beyond what the same search finds in another document" in said
    assert "0.375 [0.375, 0.375] of the 1.000 there are to gain" in said
    assert said.endswith("between 2 and 4 of the nearest tokens do as much.")


def test_beside_what_a_rule_finds_stands_what_it_finds_in_another_document(tmp_path: Path) -> None:
    write_choices(tmp_path, ["leave_one_out_divergence"])
    (said,) = (answer for answer in closing_answers.answers(tmp_path) if "far tokens" in answer)
    assert "give 0.500 [0.500, 0.500] nats: " in said
    assert said.endswith("(another document's tokens, chosen alike, give 0.125 [0.125, 0.125]).")


def test_a_rule_that_sees_the_answer_is_told_by_its_excess_only(trained: Path) -> None:
    (said,) = (answer for answer in closing_answers.answers(trained) if "far tokens" in answer)
    excess = excess_over_null(read_sparse_losses(trained, only={"model": ["long-seed0"]}))
    (row,) = excess[(excess["rule"] == "leave_one_out") & (excess["k"] == 16)].to_dict("records")
    assert f"give {row['excess_loss']:.3f} [{row['excess_loss_low']:.3f}, " in said
    assert "beyond what the same search finds in another document" in said


def test_short_models_are_told_with_the_gain_held_constant(trained: Path) -> None:
    """The planted gap rises with k*, by 0.05 nats a doubling of k* + 1 of short-contiguous."""
    told = [answer for answer in closing_answers.answers(trained) if answer.startswith("Under the long")]
    assert [answer.split(" loses")[0].split()[-1] for answer in told] == ["short-contiguous", "short-pose"]
    assert all("more than long-seed1; with every doubling" in answer for answer in told)


def test_what_is_missing_for_the_last_answer_is_said(results: Path, tmp_path: Path) -> None:
    assert "the results do not say how the models were trained" in list(closing_answers.answers(results))[-1]
    one_seed = tmp_path / "one_seed"
    write_results(one_seed, models=["short-pose", LONG_MODELS[0]], scale=(1000, 50), num_documents=4)
    assert "a second long-trained seed is needed" in list(closing_answers.answers(one_seed))[-1]
    long_only = tmp_path / "long_only"
    write_results(long_only, models=LONG_MODELS, scale=(1000, 50), num_documents=4)
    assert "it needs models trained at a short context" in list(closing_answers.answers(long_only))[-1]
    assert set(read_artefact(long_only, "loss_differences")["model"]) == set(LONG_MODELS)
