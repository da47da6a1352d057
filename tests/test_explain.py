"""One text explained: numbers of the stock model, the search against every unit, what is told and refused."""

import json
import re
import shlex
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hand_made_models import EvidenceLM
from hugging_face_families import CHAT, CHAT_TEMPLATE, save_chat_model
from measured_documents import Typed
from naive_predictions import (
    Stock,
    assert_explained,
    divergence,
    log_probs,
    naive_losses,
    stock_hugging_face,
    swapped,
)
from sparsity_length.programs import explain as program
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparsity_length import explain, influential_tokens, losses
from sparsity_length.cli import InputError
from sparsity_length.cli import main as sparsity
from sparsity_length.measuring import explanation
from sparsity_length.measuring.contexts import Batching, PackedSequence, full_pass
from sparsity_length.measuring.search import Search
from sparsity_length.measuring.settings import NUM_TARGETS, Explaining
from sparsity_length.measuring.windows import window_starts
from sparsity_length.models.interface import CausalLM
from sparsity_length.pages import explained
from sparsity_length.pages.explained import Explanation
from sparsity_length.text.places import unit_starts
from sparsity_length.text.tokenizer import load_tokenizer

TEXT = "The cat sat on a mat, and the cat that sat there saw a naïve 👩‍👩‍👧 in the مرحبا e\u0301. "
FOREIGN = "a dog ran over the hill and a cow saw the dog, the hill and the sun. " * 8
S = 4
HOSTILE = "red \x1b[31m alert \x07 \x9b31m turned \u202e round \u2066 and back again, again and again"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("models") / "tiny", [TEXT * 4, HOSTILE], 268)


@pytest.fixture(scope="module")
def stock(model: Path) -> Stock:
    loaded = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    return stock_hugging_face(loaded.float().eval())


def predicted(stock: Stock, target: int, *texts: np.ndarray) -> np.ndarray:
    """ln p of every token at the target, behind each of these texts: float64 [N, V]."""
    return log_probs(stock, target, [(text, range(target)) for text in texts])


def log_p(stock: Stock, context: np.ndarray, ids: np.ndarray) -> float:
    """ln p of the last tokens of `ids` together, behind a context that stands for the others."""
    tokens = np.concatenate([context, ids[len(context) :]])
    return -sum(naive_losses(stock, t, [(tokens, range(t))])[0] for t in range(len(context), len(ids)))


FLAGS: dict[str, Any] = {"short_context_length": S, "swap_text": FOREIGN, "unit": "token"}


@pytest.fixture(scope="module")
def exact(model: Path) -> Explanation:
    """The effects of all tokens on all predictions."""
    return explain(TEXT, str(model), **FLAGS, targets="all", sources=500)


def test_every_number_is_that_of_the_stock_model(model: Path, stock: Stock, exact: Explanation) -> None:
    """Losses, effects of every token, and the trial in two swapped contexts."""
    tried = explain(TEXT, str(model), **FLAGS, targets=len(exact.losses), budget=3600)
    ids = load_tokenizer(model).read(TEXT).token_ids_N[-64:]
    swaps = load_tokenizer(model).read(FOREIGN).token_ids_N[: 4 * 64].reshape(4, 64)
    first = exact.first_token
    assert first > 0 and len(exact.losses) == 64 - S - 2
    assert len(tried.targets) == len(exact.targets) == len(exact.losses)
    pd.testing.assert_frame_equal(tried.losses, exact.losses, atol=1e-5)
    for row in exact.losses[::9].itertuples():
        assert S <= row.position - row.near_position <= S + 1
        assert_explained(tried, row.position, ids, swaps, partial(log_probs, stock), 2e-5)
        t = row.position - first
        near = t - S
        left_out = (swapped(ids, swaps[-1], [place]) for place in range(1, near))
        full, *moved = predicted(stock, t, ids, *left_out)
        of_row = exact.frame[exact.frame["position"] == row.position]
        shown = of_row.set_index("source_position")["effect"].loc[first + np.arange(1, near)]
        np.testing.assert_allclose(shown, [divergence(full, one) for one in moved], atol=2e-5)
        assert (of_row["effect"].diff().dropna() <= 1e-5).all()
        assert (of_row["near_position"] == first + near).all()
    numbers = tried.frame.groupby("position")["source_position"].agg(["count", "nunique"])
    assert (numbers["count"] == numbers["nunique"]).all() and numbers["count"].between(1, 4).all()


def test_tokens_are_colored_from_a_tenth_of_a_nat_on(exact: explanation.Explanation) -> None:
    effects = {target["position"]: target["total_effect"] for target in exact.targets}
    colored = [place for place, effect in effects.items() if effect >= 0.1 and exact._pieces[place].strip()]
    assert 0 < len(colored) < len(effects)
    assert exact.in_words(is_colored=True).count("\x1b[48;5;") == len(colored) + 4  # of the legend


def test_windows_begin_where_they_are_said_to(
    model: Path, stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last one, which is moved back, and those that more neighbors share in long texts."""
    monkeypatch.setattr(explanation, "MOST_WINDOWS", 6)
    assert window_starts(30, 20, 5, 4).tolist() == [15, 15, 15, 15, 19, 19, 21, 21, 21, 21]
    found = explain(TEXT, str(model), **{**FLAGS, "short_context_length": 6}, targets=1)
    ids = load_tokenizer(model).read(TEXT).token_ids_N[found.first_token :]
    near_tokens = found.losses["position"] - found.losses["near_position"]
    assert near_tokens.min() == 6 and near_tokens.max() > 6 + 2
    assert (found.frame["position"] - found.frame["near_position"] == 6).all()
    assert len(found.losses) % (near_tokens.max() - 5)
    for row in found.losses[-7:].itertuples():
        near = row.near_position - found.first_token
        t = row.position - found.first_token
        (loss,) = naive_losses(stock, t, [(ids, range(near, t))])
        assert row.window_short_loss == pytest.approx(loss, abs=2e-5)


def test_numbers_are_those_of_the_library(model: Path) -> None:
    """Of the same swap texts: losses, the total effect, and every influence by the rule."""
    flags = {"short_context_length": S, "swap_text": FOREIGN}
    text = TEXT[:60]  # one chunk
    found = explain(text, str(model), **flags, unit="token", targets="all", sources=500)
    of_all = losses(text, str(model), short_context_length=S).set_index("position")
    of_rule = influential_tokens(text, str(model), **flags, k=1, num_targets=9, search_swaps=1)
    of_rule = of_rule.set_index("position")
    frame = found.frame.groupby("position").first()
    for name in ("long_context_loss", "short_context_loss"):
        np.testing.assert_allclose(frame[name], of_all[name].loc[frame.index], atol=1e-5)
    rows = frame.loc[of_rule.index]
    for name in ("long_context_loss", "short_context_loss", "baseline_loss"):
        np.testing.assert_allclose(rows[name], of_rule[name], atol=1e-5)
    np.testing.assert_allclose(rows["total_effect"], of_rule["baseline_divergence"], atol=1e-5)
    assert (rows["source_position"] == of_rule["source_position"]).mean() > 0.8


def test_sources_do_not_depend_on_what_else_is_explained(model: Path) -> None:
    few, many = (explain(TEXT, str(model), **FLAGS, targets=n, budget=3600).frame for n in (2, 9))
    of_few = many[many["position"].isin(few["position"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(few, of_few, atol=1e-5, rtol=1e-3)


def test_a_prediction_behind_labels_alone_has_no_source_and_many_may_be_asked_for() -> None:
    """A short chat may have nothing distant but what the template wrote."""
    planted = {place: 4 + place // 8 for place in range(8, 80, 8)}  # nine tokens, each elsewhere
    search = _search(96, 80, planted, lambda seen: 6.0 * ({*planted.values()} <= seen), k=9)
    assert sorted(search.run(0).spans_K2[:, 0].tolist()) == [*planted]
    search.is_label_S[:] = True
    found = search.run(0)
    assert found.spans_K2.shape == (0, 2) and len(found.effects_K) == 0
    queries_Q = search.queries_of(0)
    total, left = (search.effect_of(of, queries_Q) for of in (found.without, found.with_sources))
    assert total == pytest.approx(left) and total > 0.1


def _search(length: int, near: int, planted: dict[int, int], logit_of: Any, k: int) -> Search:
    """The search for what the last of so many tokens depends on, in a model that knows an answer."""
    lm = EvidenceLM(16, answer=3, logit_of=logit_of)
    ids = np.full(length, 1)
    ids[list(planted)] = list(planted.values())
    sequence = PackedSequence(
        ids, np.arange(length), None, np.array([length - 1]), np.array([3]), np.array([near]), slice(0, 1)
    )
    starts = np.arange(1, length)
    swaps_of = np.full(length, 2), np.full((2, length), 2)
    full = full_pass(lm, sequence)  # type: ignore[arg-type]
    is_label = np.zeros(length, dtype=bool)
    return Search(lm, Batching(256), sequence, full, *swaps_of, starts, starts[:1], k, is_label)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("planted", "logit_of", "sources"),
    [
        ({63: 5}, lambda seen: 4.0 * (5 in seen), [63]),
        # Neither helps without the other.
        ({11: 5, 63: 7}, lambda seen: 6.0 * ({5, 7} <= seen), [11, 63]),
        ({11: 5, 63: 7}, lambda seen: 3.0 * len(seen & {5, 7}), [11, 63]),
        # Neither is missed while the other is there; one suffices, and the nearer is kept.
        ({11: 5, 63: 7}, lambda seen: 6.0 * bool({5, 7} & seen), [63]),
    ],
    ids=["one", "together", "sum", "redundant"],
)
def test_planted_sources_are_found(planted: dict[int, int], logit_of: Any, sources: list[int]) -> None:
    search = _search(96, 80, planted, logit_of, k=4)
    found = search.run(0)
    assert sorted(found.spans_K2.tolist()) == [[place, place + 1] for place in sources]
    queries_Q = search.queries_of(0)
    left = [search.effect_of([predictions], queries_Q) for predictions in found.with_sources]
    total = [search.effect_of([predictions], queries_Q) for predictions in found.without]
    assert max(map(abs, left)) < 1e-6 < min(total)
    assert found.remaining_K[-1] == pytest.approx(0, abs=1e-6)
    # What swapping one alone does: all, or a part; of the redundant one nothing.
    if len(planted) > len(sources):
        assert found.effects_K.tolist() == pytest.approx([0.0], abs=1e-6)
    else:
        assert (found.effects_K > 0.1).all()


def test_what_remains_is_a_mean_over_the_trials_alone() -> None:
    """One trial's text holds what the sources say, the other and the search's do not."""
    search = _search(96, 80, {11: 5, 63: 7}, lambda seen: 3.0 * len(seen & {5, 7}), k=2)
    search.trial_swaps_BS[0, 30:32] = [5, 7]
    whole, half = (np.exp(logit) / (np.exp(logit) + 15) for logit in (6, 3))
    divergence_of_one = whole * np.log(whole / half) + (1 - whole) * np.log((1 - whole) / (1 - half))
    assert search.run(0).remaining_K == pytest.approx([divergence_of_one / 2, 0], abs=1e-5)


def test_a_source_is_what_is_needed_together() -> None:
    """Three tokens in a row that say something together, across two groups, and one elsewhere."""
    planted = {11: 5, 42: 6, 43: 7, 44: 8}
    logit_of = lambda seen: 4.0 * (5 in seen) + 6.0 * ({6, 7, 8} <= seen)  # noqa: E731
    search = _search(96, 80, planted, logit_of, k=3)
    assert 43 in search._groups_V2[:, 0]
    assert search.run(0).spans_K2.tolist() == [[42, 45], [11, 12]]


def test_instead_is_the_difference_of_the_stock_model(model: Path, stock: Stock) -> None:
    text = "a mat and the cat that sat there saw a dog in the"
    asked = {"at": "hall", "instead": "street", "targets": "all", "sources": 500}
    found = explain(f"{text} hall", str(model), **FLAGS, **asked)
    tokenizer = load_tokenizer(model)
    own, instead = (tokenizer.read(f"{text} {word}").token_ids_N for word in ("hall", "street"))
    fork = next(place for place, ids in enumerate(zip(own, instead, strict=False)) if len({*ids}) > 1)
    context = own[:fork]
    length = found.targets[0]["position"] + 1
    other = tokenizer.read(FOREIGN).token_ids_N[3 * length :][: len(context)]

    def difference(context: np.ndarray) -> float:
        return log_p(stock, context, own) - log_p(stock, context, instead)

    assert found.facts["contrast"][:2] == ["hall", "street"]
    full = difference(context)
    assert found.facts["contrast"][2] == pytest.approx(full, abs=5e-5)
    near = found.targets[0]["position"] - S
    effects = found.frame.set_index("source_position")["effect"]
    assert set(effects.index) <= {*range(1, near)}
    for place in range(1, near):
        without = difference(swapped(context, other, [place]))
        assert effects[place] == pytest.approx(full - without, abs=5e-5)
    assert "“hall” is so many times as likely as “street”" in str(found)


@pytest.mark.parametrize("which", ["at", "position"])
def test_a_whole_is_the_sum_of_its_tokens(model: Path, stock: Stock, which: str) -> None:
    """Effects of every token, the trial and probabilities: sums of the stock model's log-probabilities."""
    tokenizer = load_tokenizer(model)
    text = "a mat and the cat that sat there saw a dog in the hall, and"
    ids = tokenizer.read(text.removesuffix(", and")).token_ids_N
    first = len(tokenizer.read("a mat and the cat that sat there saw a ").token_ids_N)
    named = {"at": "dog in the hall"} if which == "at" else {"position": f"{first}:{len(ids)}"}
    exact = explain(text, str(model), **FLAGS, **named, targets="all", sources=500)
    (target,) = exact.targets
    assert (target["position"], target["end"]) == (first, len(ids))
    assert target["token"] == "dog in the hall"
    assert exact.losses["position"].tolist() == [*range(first, len(ids))]
    foreign = tokenizer.read(FOREIGN).token_ids_N[: 4 * len(ids)].reshape(4, len(ids))
    near = first - S

    def log_p_behind(context: np.ndarray) -> float:
        return log_p(stock, context[:first], ids)

    full = log_p_behind(ids)
    effects = exact.frame.set_index("source_position")["effect"]
    assert set(effects.index) == {*range(1, near)}
    for place in range(1, near):
        alone = log_p_behind(swapped(ids, foreign[3], [place]))
        assert effects[place] == pytest.approx(full - alone, abs=5e-5)

    (found,) = explain(text, str(model), **FLAGS, **named, sources=2).targets
    spans = [range(source["source_position"], source["source_end"]) for source in found["sources"]]
    kept = [place for span in spans for place in span]
    without = [log_p_behind(swapped(ids, other, slice(near))) for other in foreign[1:3]]
    back = [log_p_behind(swapped(other, ids, [*kept, *range(near, first)])) for other in foreign[1:3]]
    assert found["total_effect"] == pytest.approx(full - np.mean(without), abs=5e-5)
    assert found["recovered"] * found["total_effect"] == pytest.approx(
        np.mean(back) - np.mean(without), abs=1e-4
    )
    assert found["long_context_loss"] == pytest.approx(-full, abs=5e-5)
    number = len(ids) - first
    told = [found[name] for name in ("probability", "probability_without", "probability_with_sources")]
    means = [np.exp(full / number), *(np.mean(np.exp(np.array(sums) / number)) for sums in (without, back))]
    np.testing.assert_allclose(told, means, atol=1e-5)
    alone = log_p_behind(swapped(ids, foreign[3], [*spans[0]]))
    assert found["sources"][0]["probability_swapped"] == pytest.approx(np.exp(alone / number), abs=1e-5)


def test_words_are_those_of_their_last_occurrence_or_the_one_named(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def begins(at: str) -> int:
        found = explain(TEXT, str(model), short_context_length=S, at=at)
        assert found.facts["note"] in str(found) and found.facts["note"] in caplog.text
        assert ("the last; --at 'the:1' is the first" in found.facts["note"]) == (at == "the")
        word = found.targets[0]["token"]
        return found.targets[0]["byte_start"] + len(word) - len(word.lstrip())

    text = TEXT.encode()
    assert (
        begins("the") == begins("the:2") == text.rindex(b"the") > begins("the:1") == text.index(b" the") + 1
    )
    # Words that are in the text are taken as they are.
    assert explain("a b a:1 a b a a a b", str(model), short_context_length=1, at="a:1").facts["note"] is None


def test_control_tokens_of_a_chat_are_labels_and_never_sources(model: Path) -> None:
    flags = {"short_context_length": S, "long_context_length": 60}
    every = explain(CHAT, str(model), **flags, targets="all", sources=500)
    few = explain(CHAT, str(model), **flags, targets=2, budget=3600)
    labels = every.facts["labels"]
    assert [role for *_, role in labels] == ["user", "", "assistant"]
    of_labels = {place for start, end, _ in labels for place in range(start, end)}
    for found in (every, few):
        words = {
            place for row in found.frame.itertuples() for place in range(row.source_position, row.source_end)
        }
        assert words and not words & of_labels
    assert "?" in set(every.frame["source"].str.strip())  # without what ends the message
    assert "[user]" in str(few) and "[assistant]" in str(few) and "<|" not in str(few)


def test_an_answer_as_a_whole(model: Path) -> None:
    """All tokens that would else be explained one by one; by sentences if they are many."""
    flags = {"short_context_length": S, "long_context_length": 60}
    for chat, answer in ((CHAT, {}), (CHAT[:1], {"generate": 3})):
        each = explain(chat, str(model), **flags, **answer, targets=1)
        (target,) = explain(chat, str(model), **flags, **answer, whole_answer=True).targets
        assert [target["position"], target["end"] - 1] == each.losses["position"].iloc[[0, -1]].tolist()
    long = explain(TEXT, str(model), short_context_length=S, position="30:47")
    assert (long.facts["unit"], long.targets[0]["end"]) == ("sentence", 47)
    assert explain(TEXT, str(model), short_context_length=S, position="30:46").facts["unit"] == "word"


def test_a_chat_is_read_by_its_template_and_its_answer_explained(model: Path, stock: Stock) -> None:
    automatic = AutoTokenizer.from_pretrained(model)
    ids = automatic.apply_chat_template(CHAT, tokenize=True, return_dict=False)
    found = explain(CHAT, str(model), short_context_length=S, long_context_length=60)
    read = found.text.token_ids_N
    assert read.tolist() == ids[: len(read)] and len(ids) - len(read) == 1  # all but <|im_end|>
    assert "".join(found.losses["token"]).strip() == CHAT[1]["content"]
    assert {target["position"] for target in found.targets} <= set(found.losses["position"])

    # The other continuation stands behind the same control tokens.
    word = {"at": "mat", "instead": "hat"}
    contrasted = explain(CHAT, str(model), short_context_length=S, long_context_length=60, **word)
    assert contrasted.facts["contrast"][:2] == ["mat", "hat"]
    assert contrasted.text.token_ids_N.tolist() == ids[: len(contrasted.text.token_ids_N)]

    prompt = automatic.apply_chat_template(
        CHAT[:1], tokenize=True, return_dict=False, add_generation_prompt=True
    )
    expected = list(prompt)
    for _ in range(3):
        expected.append(int(predicted(stock, len(expected), np.array(expected)).argmax()))
    answered = explain(CHAT[:1], str(model), short_context_length=S, generate=3)
    assert answered.text.token_ids_N.tolist() == expected
    assert answered.losses["position"].tolist() == list(range(len(prompt), len(expected)))


@pytest.mark.parametrize("answer", ["伦敦", "東京です", "서울은", "दिल्ली है", "باريس", "กรุง", "cafe\u0301"])
def test_an_answer_ends_with_all_tokens_of_its_last_character(answer: str, model: Path) -> None:
    chat = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": answer}]
    read = load_tokenizer(model).read(chat)
    ids = load_tokenizer(model).read(f": {answer}").token_ids_N[1:]  # without the colon
    found = explain(chat, str(model), short_context_length=S, long_context_length=60, targets=1)
    measured = found.losses["token_id"].tolist()
    assert measured == ids[-len(measured) :].tolist() and len(measured) >= len(ids) - 1
    assert read.token_ids_N[len(found.text.token_ids_N)] == load_tokenizer(model).eos_token_id


@pytest.mark.parametrize(
    ("which", "own"),
    [
        ({"at": "10,000"}, "10,000"),
        ({"at": "10,000 ships"}, "10,000 ships"),
        ({"at": "10"}, "10"),  # ends within what may be a token
        ({"position": None}, "10,000"),
        ({"position": "to the comma"}, "10,000 ships"),
    ],
)
def test_instead_compares_what_at_names(which: dict[str, Any], own: str, model: Path, stock: Stock) -> None:
    """Not what a pattern makes of it: difference of the stock model's log-probabilities of both."""
    before = "the cat sat there and saw"
    text = f"{before} 10,000 ships, and the cat"
    reader = load_tokenizer(model)
    if "position" in which:
        places = len(reader.read(before).token_ids_N), len(reader.read(f"{before} {own}").token_ids_N)
        assert reader.read(text).pieces[places[0]].strip() in "10,000"
        which = {"position": places[0] if which["position"] is None else f"{places[0]}:{places[1]}"}
    found = explain(text, str(model), **FLAGS, **which, instead="20,000")
    assert found.facts["contrast"][:2] == [own, "20,000"]
    context = reader.read(before).token_ids_N
    words = (reader.read(f"{before} {word}").token_ids_N for word in (own, "20,000"))
    own_log_p, other_log_p = (log_p(stock, context, ids) for ids in words)
    assert found.facts["contrast"][2] == pytest.approx(own_log_p - other_log_p, abs=5e-5)


def test_instead_ends_before_the_control_token_of_a_chat(model: Path) -> None:
    read = load_tokenizer(model).read(CHAT)
    position = next(
        i
        for i, piece in enumerate(read.pieces)
        if read.text[read.characters_N2[i, 0] :].strip().startswith("mat<")
    )
    found = explain(CHAT, str(model), **FLAGS | {"long_context_length": 60}, position=position, instead="hat")
    assert found.facts["contrast"][:2] == ["mat", "hat"]
    for instead in ("", " ", "mat", " mat "):
        with pytest.raises(InputError, match="--instead compares two words, not “mat” with"):
            explain(CHAT, str(model), **FLAGS, at="mat", instead=instead)


ROLES = "{% for m in messages %}<|im_start|>{{ m.role }}: "
END = "<|im_end|>{% endfor %}"
THINKING = (
    "{% set c = m.content.split('</think>') %}{% if c[1] %}<think>{{ c[0][7:] }}</think>\n\n{% endif %}"
    "{{ c[-1] | trim }}"
)


@pytest.mark.parametrize(
    ("template", "content", "answer"),
    [
        # What also stands in the question, in the template, or in the control tokens.
        (CHAT_TEMPLATE, "end", "end"),
        (CHAT_TEMPLATE, "a", "a"),
        (CHAT_TEMPLATE, "|", "|"),
        (CHAT_TEMPLATE, [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}], "the cat"),
        (f"{ROLES}{{{{ m.content | trim }}}}{END}", "\n the cat \n", "the cat"),
        (f"{ROLES}{{{{ m.content }}}}<|im_end|>{{{{ m.content }}}}{{% endfor %}}", "the cat", "the cat"),
        (
            f"{ROLES}{{{{ m.content }}}}<|im_end|>{{{{ m.content | upper }}}}{{% endfor %}}",
            "the cat",
            "the cat",
        ),
        (f"{ROLES}{THINKING}{END}", "<think>a mat?</think>the cat", "<think>a mat?</think>\n\nthe cat"),
        (f"{ROLES}{{{{ m.content.split('</think>')[-1] }}}}{END}", "<think>a mat?</think>the cat", "the cat"),
    ],
)
def test_an_answer_is_what_the_template_writes_of_it(
    template: str, content: Any, answer: str, model: Path
) -> None:
    automatic = AutoTokenizer.from_pretrained(model)
    automatic.chat_template = template
    reader = load_tokenizer(automatic)
    asked = {"role": "user", "content": "a cat? None, at the end |"}
    for role in ("assistant", "tool", "user"):
        read = reader.read([asked, {"role": role, "content": content}])
        start, end = read.last_message or (0, 0)
        assert read.text[start:end] == answer
        assert f"{role}: " in read.text[:start] and "<|im_end|>" in read.text[end:]


@pytest.mark.parametrize("nothing", [[], "", np.array([], int)])
def test_no_messages_and_no_text_are_nothing_to_explain(nothing: Any, model: Path) -> None:
    with pytest.raises(InputError, match="the text is empty, or there are no messages"):
        explain(nothing, str(model))


def test_a_chat_s_other_messages_are_the_template_s(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    automatic = AutoTokenizer.from_pretrained(model)
    automatic.chat_template = f"{ROLES}{{{{ m.content or m.tool_calls }}}}{END}{{# strftime_now #}}"
    call: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": "look('mat')"}
    chat = [CHAT[0], call, {"role": "tool", "content": "a mat"}, CHAT[1]]
    read = load_tokenizer(automatic).read(chat)
    assert read.text == automatic.apply_chat_template(chat, tokenize=False)
    assert "writes today's date" in caplog.text
    del call["content"]
    assert load_tokenizer(automatic).read(chat).text == read.text


@pytest.mark.parametrize("place", ["generation_config.json", "config.json", "the model in memory"])
def test_an_answer_ends_at_any_of_the_end_tokens(model: Path, tmp_path: Path, place: str) -> None:
    """Of the generation configuration, the configuration and the tokenizer, as with the stock model."""
    asked = {"short_context_length": S, "generate": 6, "targets": 1}
    whole = explain(TEXT, str(model), **asked)
    *_, third, fourth, fifth, sixth = whole.text.token_ids_N.tolist()
    ends = [fifth, 1]
    expected = [third, fourth, fifth, sixth].index(fifth)
    given = str(shutil.copytree(model, tmp_path / "tiny"))
    automatic = AutoTokenizer.from_pretrained(given)
    if place.endswith(".json"):
        path = Path(given) / place
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": ends}))
        found = explain(TEXT, given, **asked)
    else:
        stock = AutoModelForCausalLM.from_pretrained(given).float().eval()
        stock.generation_config.eos_token_id = ends
        found = explain(TEXT, stock, automatic, **asked)
    assert found.text.token_ids_N.tolist() == whole.text.token_ids_N.tolist()[: expected - 4]


def test_a_swap_text_must_last_for_the_answer_too(model: Path) -> None:
    num_tokens = len(load_tokenizer(model).read("a mat").token_ids_N)
    with pytest.raises(InputError, match=f"and {4 * (num_tokens + 6)} are needed"):
        explain("a mat", str(model), short_context_length=1, generate=6, swap_text="a")


def test_the_summary_adds_up_and_every_face_tells_the_same(model: Path, tmp_path: Path) -> None:
    found = explain(TEXT, str(model), short_context_length=S, targets=4)
    said = str(found)
    perplexities = [float(number) for number in re.findall(r"([\d.]+) with ", said)[:3]]
    columns = ["long_context_loss", "window_short_loss", "window_swapped_loss"]
    np.testing.assert_allclose(perplexities, np.exp(found.losses[columns].mean()), atol=0.051)
    total = sum(target["total_effect"] for target in found.targets)
    recovered = sum(target["recovered"] * target["total_effect"] for target in found.targets)
    (share,) = re.findall(r"recover (-?\d+)% of the effect", said)
    assert int(share) / 100 == pytest.approx(recovered / total, abs=0.006)
    rows = re.findall(r"^(\d+)  .*: <?([\d.]+)% with the whole text", said, re.MULTILINE)
    shown = {int(position): float(probability) for position, probability in rows}
    told = {target["position"]: 100 * target["probability"] for target in found.targets}
    assert shown == pytest.approx(told, abs=0.51)
    assert found.record["summary"] == found.summary and len(found.record["targets"]) == 4
    found.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    (data,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page)
    assert json.loads(data).items() >= found.record.items() and found._repr_html_().startswith(
        "<iframe srcdoc="
    )


PER_SECOND = 500


def explained_within(budget: float, model: Path, patch: pytest.MonkeyPatch) -> tuple[Explanation, float]:
    """An explanation, and its seconds by a clock on which they are forward tokens, whatever computes them."""
    run = CausalLM._run
    num_tokens = 0

    def counted(self: CausalLM, tokens: torch.Tensor, *rest: Any, **options: Any) -> Any:
        nonlocal num_tokens
        num_tokens += tokens.numel()
        return run(self, tokens, *rest, **options)

    with patch.context() as patched:
        patched.setattr(CausalLM, "_run", counted)
        patched.setattr(explanation, "time", SimpleNamespace(monotonic=lambda: num_tokens / PER_SECOND))
        found = explain(TEXT, str(model), short_context_length=S, unit="token", budget=budget)
    return found, num_tokens / PER_SECOND


def test_a_budget_is_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nums = []
    for budget in (3600, 8, 4):
        found, seconds = explained_within(budget, model, monkeypatch)
        assert seconds <= 1.1 * budget
        nums.append(len(found.targets))
        assert ("A longer --budget explains" in str(found)) == (nums[-1] < NUM_TARGETS)
    assert nums[0] == NUM_TARGETS > nums[1] > nums[2] >= 1
    with pytest.raises(InputError, match="is too short: loading"):
        explained_within(1, model, monkeypatch)


def test_a_budget_ends_a_prediction_that_takes_longer_than_thought(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "likely_tokens", lambda *about: 0)
    found, seconds = explained_within(2.5, model, monkeypatch)
    assert seconds <= 2.5 and not found.targets and "Explained: 0 of the" in str(found)


def test_without_a_budget_there_is_a_page(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine: the colored text at once, and the strongest prediction."""
    monkeypatch.setattr(Explaining, "seconds", 1e-9)
    shown: list[int] = []
    found = explain(TEXT, str(model), **FLAGS, show=lambda one: shown.append(len(one.targets)))
    assert shown == [0, 1] and len(found.targets) == 1
    strongest = found.losses.nlargest(1, "window_swapped_divergence")["position"].item()
    assert found.targets[0]["position"] == strongest


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("It rained, naïvely.", "word", ["It", " rained", ",", " naïvely", "."]),
        ("if x == foo_2:\n    y", "word", ["if", " x", " ==", " foo_2", ":\n   ", " y"]),
        ("One. Two!\nThree", "sentence", ["One.", " Two!\n", "Three"]),
        ("One.\nTwo\n\nThree", "paragraph", ["One.\nTwo\n\n", "Three"]),
        ("One.\nTwo", "paragraph", ["One.\n", "Two"]),
        ("你好吗", "word", ["你", "好", "吗"]),
    ],
)
def test_units(text: str, unit: str, expected: list[str], model: Path) -> None:
    read = load_tokenizer(model).read(text)
    starts = unit_starts(read, unit)
    ends = [*starts[1:], len(read.pieces)]
    found = ["".join(read.pieces[start:end]).strip() for start, end in zip(starts, ends, strict=True)]
    assert found == [words.strip() for words in expected]
    assert unit_starts(read, "token").tolist() == list(range(len(read.pieces)))


@pytest.mark.parametrize(
    ("probability", "said"),
    [
        (0.934, "93%"),
        (0.0995, "10%"),
        (0.0994, "9.9%"),
        (0.042, "4.2%"),
        (0.00995, "1.0%"),
        (0.00994, "0.99%"),
        (0.0001, "0.01%"),
        (0.00009, "<0.01%"),
        (0.0, "0.00%"),
        (1.0, "100%"),
    ],
)
def test_probabilities_in_two_digits(probability: float, said: str) -> None:
    assert explained._percent(probability) == said


@pytest.fixture
def flags(model: Path, tmp_path: Path) -> list[str]:
    return f"--model {model} --short-context-length 4 --targets 2 --out {tmp_path}/x.html".split()


def test_what_is_printed(
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: Typed,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The text's end, which the model has positions for; colors for terminals alone; nothing hostile."""
    caplog.set_level("INFO")
    data = tmp_path / "data"
    text = tmp_path / "text"
    text.write_text(TEXT)
    words = [program.STAGE.main, "explain.py", *flags, "--text-file", text]
    _, said, _ = typed(*words, "--json", f"{data}.json", "--csv", f"{data}.csv")
    record = json.loads(data.with_suffix(".json").read_text())
    assert len(record["targets"]) == 2 and len(record["losses"]["position"]) == 64 - S - 2
    rows = pd.read_csv(data.with_suffix(".csv"))
    assert rows["position"].nunique() == 2
    for values in (rows["effect"], rows["total_effect"], record["losses"]["long_context_loss"]):
        assert [float(f"{value:.4g}") for value in values] == [*values] and max(values) > 0
    shown = said.partition("\n")[0]
    assert TEXT.rstrip().endswith(shown.rstrip()) and len(shown) > 30
    assert f"Predicted tokens: {64 - S - 2}. Perplexity" in said and "\x1b" not in said
    assert "of which the last 64 are measured" in caplog.text and "sources of 2 predictions" in caplog.text
    text.write_text(HOSTILE)
    _, said, _ = typed(*words)
    assert not set(said) & set("\x1b\x07\x9b\u202e\u2066")
    assert r"\x1b[31m alert \x07 \x9b31m turned \u202e round" in said
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b[48;5;" in typed(*words)[1]


@pytest.mark.parametrize("start", ["pipeline/explain.py", "sparsity explain"])
def test_the_colored_page_is_on_disk_before_a_prediction_is_explained(
    start: str,
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: Typed,
) -> None:
    """And says how the rest is explained."""

    def fails(search: Search, target: int) -> None:
        raise InputError("here the power fails")

    text = tmp_path / "text"
    text.write_text(TEXT)
    monkeypatch.setattr(Search, "run", fails)
    words = start.split()
    main = sparsity if "sparsity" in words else program.STAGE.main
    code, *_ = typed(main, *words, *flags, "--text-file", text, "--budget", "1h")
    (data,) = re.findall('id="data">(.*?)</script>', (tmp_path / "x.html").read_text())
    page = json.loads(data)
    assert (code, page["targets"], len(page["wanted"]), len(page["pieces"])) == (2, [], 2, 64)
    again = f"sparsity explain --model {flags[1]} --short-context-length 4 --text-file {text}"
    assert shlex.split(page["command"]) == again.split()


def test_an_output_on_standard_output_is_all_of_it(flags: list[str], tmp_path: Path, typed: Typed) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT)
    words = [*flags, "--text-file", text, "--json", "-", "--csv", "/dev/null"]
    _, said, _ = typed(program.STAGE.main, "explain.py", *words)
    assert len(json.loads(said)["targets"]) == 2
    assert Path("/dev/null").is_char_device() and not Path("-").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--text-file", "{folder}/text", "--json", "-", "--csv", "-"], "--json and --csv are both -"),
        (["--text-file", "{folder}/blank"], "the text is empty"),
        (["--text-file", "{folder}/two"], "leave some of the 2 tokens"),
        (["--text-file", "{folder}/latin"], "not text in UTF-8: 'utf-8' codec can't decode byte 0xef"),
        (
            ["--text-file", "{folder}/text", "--tokenizer", "bpe:300"],
            "the tokenizer is of type int; give a tokenizer.json",
        ),
        (
            ["--text-file", "{folder}/text", "--swap-text-file", "{folder}/short"],
            "the swapped text has 1 tokens, and 256",
        ),
        (["--text-file", "{folder}/short", "--out", "{folder}/short"], "is an input, which the output would"),
        (
            ["--text-file", "{folder}/text", "--out", "{model}/config.json"],
            "is an input, which the output would",
        ),
        (["--text-file", "{folder}/text", "--budget", "soon"], "soon is not a duration above 0, such as 90s"),
        (["--text-file", "{folder}/text", "--instead", "dog"], "--instead needs --at or --position"),
        (["--chat", "{folder}/short"], "is not a chat: a JSON list"),
        (["--chat", "{folder}/list"], "is not a chat: a JSON list"),
        (["--chat", "{folder}/none"], "there are no messages"),
        (["--chat", "{folder}/null"], "the last message has no content"),
        (["--chat", "{folder}/no-parts"], "the last message has no content"),
        (["--chat", "{folder}/no-key"], "the last message has no content"),
        (["--chat", "{folder}/blank-answer"], "the last message has no content"),
        (
            ["--chat", "{folder}/picture"],
            "parts that are text, unlike {'role': 'assistant', 'content': [{'type': 'image'",
        ),
        (["--chat", "{folder}/number"], "parts that are text, unlike {'role': 'assistant', 'content': 7}"),
        (
            ["--chat", "{folder}/asked", "--tokenizer", "{folder}/bare.json", "--generate", "2"],
            "no chat template",
        ),
        (["-at", "dog"], "dog' does not occur in the text"),
        (["-at", "cat:3"], "--at 'cat:3': “cat” occurs 2 times"),
        (["-at", "The cat"], "leave some of the"),
        (["-position", "50:40"], "--position 50:40 is outside"),
        (["-position", "five"], "five is neither a token N, from 0, nor a range of tokens A:B"),
        (["--text-file", "{folder}/text", "--targets", "2", "--whole-answer"], "not allowed with argument"),
        (["-whole-answer"], "--whole-answer needs --chat or --generate"),
        (["-position", "500"], "--position 500 is outside the text of"),
        (["-position", "5"], "leave some of the 5 tokens"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    words: list[str],
    sentence: str,
    flags: list[str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    typed: Typed,
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "latin").write_bytes("naïve".encode("latin-1"))
    last_messages = {
        "no-key": {},
        "null": {"content": None},
        "no-parts": {"content": []},
        "blank-answer": {"content": " "},
        "picture": {"content": [{"type": "image", "url": "a.png"}]},
        "number": {"content": 7},
    }
    files = {
        "text": TEXT,
        "blank": "  \n ",
        "two": "a b",
        "short": "at",
        "list": "[1]",
        "none": '{"messages": []}',
        "asked": json.dumps({"messages": CHAT[:1]}),
        "bare.json": Tokenizer.from_file(f"{flags[1]}/tokenizer.json").to_str(),
        **{name: json.dumps([*CHAT, {"role": "assistant", **of}]) for name, of in last_messages.items()},
    }
    for name, content in files.items():
        (folder / name).write_text(content)
    if words[0].startswith("-") and not words[0].startswith("--"):  # of one prediction
        flags = [word for word in flags if word not in ("--targets", "2")]
        words = ["--text-file", "{folder}/text", f"-{words[0]}", *words[1:]]
    words = [word.format(folder=folder, model=flags[1]) for word in words]
    code, said, error = typed(program.STAGE.main, "explain.py", *flags, *words)
    assert (code, said) == (2, "")
    assert sentence in error and error.splitlines()[-1].startswith("explain.py: error: ")
    assert list(tmp_path.iterdir()) == [] and (folder / "short").read_text() == "at"
