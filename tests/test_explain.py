"""One text explained: numbers of the stock model, the search against every unit, what is told and refused."""

import json
import re
import shlex
import sys
from functools import partial
from os.path import commonprefix
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from hugging_face_families import CHAT, CHAT_TEMPLATE, save_chat_model
from measured_documents import Typed
from naive_predictions import (
    Stock,
    assert_explained,
    log_probs,
    naive_losses,
    stock_hugging_face,
    swapped,
)
from sparsity_length.programs import explain as program
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparsity_length import explain
from sparsity_length.cli import InputError, main
from sparsity_length.measuring import explanation
from sparsity_length.measuring.search import Search
from sparsity_length.measuring.settings import NUM_TARGETS, Explaining
from sparsity_length.measuring.windows import window_starts
from sparsity_length.models.interface import CausalLM
from sparsity_length.pages.explained import Explanation, _percent
from sparsity_length.text.tokenizer import load_tokenizer

TEXT = "The cat sat on a mat, and the cat that sat there saw a naïve 👩‍👩‍👧 in the مرحبا e\u0301. "
FOREIGN = "a dog ran over the hill and a cow saw the dog, the hill and the sun. " * 8
S = 4
L = 30
DATA = re.compile('<script type="application/json" id="data">(.*?)</script>')
HOSTILE = "red \x1b[31m alert \x07 \x9b31m turned \u202e round \u2066 and back again, again and again"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("models") / "tiny", [TEXT * 4, HOSTILE], 268)


@pytest.fixture(scope="module")
def stock(model: Path) -> Stock:
    return stock_hugging_face(
        AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager").float().eval()
    )


def log_p(stock: Stock, context: np.ndarray, ids: np.ndarray) -> float:
    """ln p of the last tokens of `ids` together, behind a context that stands for the others."""
    tokens = np.concatenate([context, ids[len(context) :]])
    return -sum(naive_losses(stock, t, [(tokens, range(t))])[0] for t in range(len(context), len(ids)))


FLAGS: dict[str, Any] = {"short_context_length": S, "swap_text": FOREIGN, "unit": "token"}
OF_CHAT: dict[str, Any] = {"short_context_length": S, "long_context_length": 60}


@pytest.fixture(scope="module")
def exact(model: Path) -> Explanation:
    """The effects of all tokens on all predictions."""
    return explain(TEXT, model, **FLAGS, long_context_length=L, targets="all", sources=500)


def test_every_number_is_that_of_the_stock_model(model: Path, stock: Stock, exact: Explanation) -> None:
    """Losses, effects of every token, and the trial in two swapped contexts, whatever else is explained."""
    asked = {**FLAGS, "long_context_length": L, "budget": 3600}
    few, tried = (explain(TEXT, model, **asked, targets=num) for num in (2, 12))
    ids = load_tokenizer(model).read(TEXT).token_ids_N[-L:]
    swaps = load_tokenizer(model).read(FOREIGN).token_ids_N[: 4 * L].reshape(4, L)
    first = exact.first_token
    assert first > 0 and len(exact.targets) == len(exact.losses) == L - S - 2
    pd.testing.assert_frame_equal(tried.losses, exact.losses, atol=1e-5)
    of_few = tried.frame[tried.frame["position"].isin(few.frame["position"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(few.frame, of_few, atol=1e-5, rtol=1e-3)
    for found, step in ((tried, 3), (exact, 6)):
        for target in found.targets[::step]:
            assert_explained(found, target["position"], ids, swaps, partial(log_probs, stock), 2e-5)
    assert (exact.losses["position"] - exact.losses["near_position"]).isin([S, S + 1]).all()
    assert (exact.frame["position"] - exact.frame["near_position"] == S).all()
    for position, sources in exact.frame.groupby("position"):
        assert sorted(sources["source_position"]) == [*range(first + 1, position - S)]
        assert (sources["effect"].diff().dropna() <= 1e-5).all()
    assert tried.frame.groupby("position")["source_position"].nunique().between(1, 4).all()


def test_sentences_are_counted_from_the_first_measured_token(model: Path) -> None:
    """Groups of the search end with them."""
    reader = load_tokenizer(model)
    text = reader.read("One red cat. Two cows ran. A dog saw the hat.")
    begin = 3
    places = explanation._places_of(text, reader, begin, len(text.token_ids_N), "word")
    starts = text.characters_N2[begin + places.sentence_starts, 0]
    assert [text.text[start:].strip()[:5] for start in starts] == ["One r", "Two c", "A dog"]


def test_tokens_are_colored_from_a_tenth_of_a_nat_on(exact: Explanation) -> None:
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
    found = explain(TEXT, model, **{**FLAGS, "short_context_length": 6}, targets=1)
    ids = load_tokenizer(model).read(TEXT).token_ids_N[found.first_token :]
    near_tokens = found.losses["position"] - found.losses["near_position"]
    assert near_tokens.min() == 6 and near_tokens.max() > 6 + 2
    assert found.facts["window_tokens"] == [6, near_tokens.max()]
    assert (found.frame["position"] - found.frame["near_position"] == 6).all()
    assert len(found.losses) % (near_tokens.max() - 5)
    for row in found.losses[-7:].itertuples():
        window, t = np.array([row.near_position, row.position]) - found.first_token
        (loss,) = naive_losses(stock, t, [(ids, range(window, t))])
        assert row.window_short_loss == pytest.approx(loss, abs=2e-5)


BEFORE = "a mat and the cat saw a "


@pytest.mark.parametrize(
    ("by", "words", "instead"),
    [
        ("at", "dog in the hall", None),
        ("position", "dog in the hall", None),
        ("at", "dog in the hall", "dog in the street"),
        ("at", "dog in the street", "dog in the hall"),  # the distant text speaks for the latter
    ],
)
def test_a_whole_is_the_sum_of_its_tokens(
    by: str, words: str, instead: str | None, model: Path, stock: Stock
) -> None:
    """Effects of every token, the trial and probabilities are of sums of the stock model's log-probabilities.

    With --instead they are of the difference of two such sums.
    """
    text = f"{BEFORE}{words}"
    own, before, foreign = (load_tokenizer(model).read(one).token_ids_N for one in (text, BEFORE, FOREIGN))
    first = len(before)
    other = load_tokenizer(model).read(f"{BEFORE}{instead}").token_ids_N if instead else before
    fork = len(commonprefix([own.tolist(), other.tolist()]))
    length = len(own)
    _, *trials, searched = foreign[: 4 * length].reshape(4, length)
    near = first - S

    def score(context: np.ndarray) -> float:
        return log_p(stock, context[:fork], own) - log_p(stock, context[:fork], other)

    full = score(own)
    named = {"at": words} if by == "at" else {"position": f"{first}:{len(own)}"}
    asked = {**FLAGS, **named, "instead": instead}
    exact = explain(f"{text}, and", model, **asked, targets="all", sources=500)
    (target,) = exact.targets
    assert (target["position"], target["end"], target["token"]) == (first, length, words)
    assert exact.losses["position"].tolist() == [*range(first, length)]
    effects = exact.frame.set_index("source_position")["effect"].sort_index()
    assert effects.index.tolist() == [*range(1, near)]
    swaps_of_one = [full - score(swapped(own, searched, [place])) for place in range(1, near)]
    np.testing.assert_allclose(effects, swaps_of_one, atol=5e-5)
    # One that works against the effect, of the other sign, is not needed.
    shares = exact.frame["effect"] / target["total_effect"]
    assert (exact.frame["is_needed"] == ((shares >= 0.1) & (not target["no_source"]))).all()
    if not target["no_source"]:
        tags = str(exact).count("recovered, needed"), str(exact).count("recovered, against")
        assert tags == ((shares >= 0.1).sum(), (shares <= -0.1).sum())

    (found,) = explain(f"{text}, and", model, **asked, sources=2).targets
    spans = [range(source["source_position"], source["source_end"]) for source in found["sources"]]
    left_out = np.setdiff1d(range(near), np.concatenate(spans))
    without = [score(swapped(own, one, slice(near))) for one in trials]
    back = [score(swapped(own, one, left_out)) for one in trials]
    assert found["total_effect"] == pytest.approx(full - np.mean(without), abs=5e-5)
    assert found["sources"][-1]["recovered_so_far"] == pytest.approx(found["recovered"])
    assert found["recovered"] * found["total_effect"] == pytest.approx(
        np.mean(back) - np.mean(without), abs=1e-4
    )
    if instead:
        assert exact.facts["contrast"] == [words, instead, pytest.approx(full, abs=5e-5)]
        return
    number = len(own) - first
    alone = score(swapped(own, searched, [*spans[0]]))
    told = [found[name] for name in ("probability", "probability_without", "probability_with_sources")]
    means = [np.exp(np.divide(sums, number)).mean() for sums in (full, without, back, alone)]
    np.testing.assert_allclose([*told, found["sources"][0]["probability_swapped"]], means, atol=1e-5)
    assert found["long_context_loss"] == pytest.approx(-full, abs=5e-5)


def test_words_are_those_of_their_last_occurrence_and_it_is_said(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = explain(TEXT, model, short_context_length=S, at="the")
    assert found.text.text == TEXT[: TEXT.rindex("the") + len("the")]
    note = "the last; --at 'the:1' is the first"
    assert note in found.facts["note"] and note in str(found) and note in caplog.text
    assert "Explained: 1 of 1 predictions." in str(found)  # which was named, not chosen
    # Words that are in the text are taken as they are.
    assert explain("a b a:1 a b a a a b", model, short_context_length=1, at="a:1").facts["note"] is None


def test_control_tokens_of_a_chat_are_labels_and_never_sources(model: Path) -> None:
    every = explain(CHAT, model, **OF_CHAT, at="mat", targets="all", sources=500)
    few = explain(CHAT, model, **OF_CHAT, targets=2, budget=3600)
    labels = every.facts["labels"]
    assert [role for *_, role in labels] == ["user", "", "assistant"]
    of_labels = {place for start, end, _ in labels for place in range(start, end)}
    for found in (every, few):
        spans = found.frame[["source_position", "source_end"]].to_numpy()
        assert len(spans) and of_labels.isdisjoint(place for span in spans for place in range(*span))
    assert "?" in set(every.frame["source"].str.strip())  # without what ends the message
    assert "[user]" in str(few) and "[assistant]" in str(few) and "<|" not in str(few)


@pytest.mark.parametrize(("chat", "answer"), [(CHAT, {}), (CHAT[:1], {"generate": 3})])
def test_an_answer_as_a_whole(chat: list[dict[str, str]], answer: dict[str, int], model: Path) -> None:
    """All tokens that would else be explained one by one."""
    each = explain(chat, model, **OF_CHAT, **answer, targets=1)
    (target,) = explain(chat, model, **OF_CHAT, **answer, whole_answer=True).targets
    assert [target["position"], target["end"] - 1] == each.losses["position"].iloc[[0, -1]].tolist()


@pytest.mark.parametrize(("position", "unit"), [("30:47", "sentence"), ("30:46", "word")])
def test_many_tokens_are_explained_by_sentences(position: str, unit: str, model: Path) -> None:
    assert explain(TEXT, model, short_context_length=S, position=position).facts["unit"] == unit


def test_a_chat_is_read_by_its_template_and_its_answer_explained(model: Path, stock: Stock) -> None:
    automatic = AutoTokenizer.from_pretrained(model)
    ids = automatic.apply_chat_template(CHAT, tokenize=True, return_dict=False)
    found = explain(CHAT, model, **OF_CHAT, targets=1)
    assert found.text.token_ids_N.tolist() == ids[:-1]  # all but <|im_end|>
    assert "".join(found.losses["token"]).strip() == CHAT[1]["content"]

    # The other continuation stands behind the same control tokens.
    contrasted = explain(CHAT, model, **OF_CHAT, at="mat", instead="hat")
    assert contrasted.facts["contrast"][:2] == ["mat", "hat"]
    assert contrasted.text.token_ids_N.tolist() == ids[: len(contrasted.text.token_ids_N)]
    by_position = explain(CHAT, model, **OF_CHAT, position=contrasted.targets[0]["position"], instead="hat")
    assert by_position.facts["contrast"] == contrasted.facts["contrast"]

    expected = automatic.apply_chat_template(
        CHAT[:1], tokenize=True, return_dict=False, add_generation_prompt=True
    )
    answered = explain(CHAT[:1], model, short_context_length=S, generate=3, targets=1)
    assert answered.losses["position"].tolist() == [*range(len(expected), len(expected) + 3)]
    for _ in range(3):
        (log_probs_V,) = log_probs(stock, len(expected), [(np.array(expected), range(len(expected)))])
        expected.append(int(log_probs_V.argmax()))
    assert answered.text.token_ids_N.tolist() == expected


FAR = "no one saw the dog " * 5


@pytest.mark.parametrize(
    ("far", "which", "own"),
    [
        ("", {"at": "10,000"}, "10,000"),
        ("", {"at": "10,000 ships"}, "10,000 ships"),
        ("", {"at": "10"}, "10"),  # ends within what may be a token
        ("", {"position": None}, "10,000"),
        ("", {"position": "to the comma"}, "10,000 ships"),
        # Within the long context.
        (FAR, {"at": "10,000 ships", "long_context_length": 56}, "10,000 ships"),
    ],
)
def test_instead_compares_what_at_names(
    far: str, which: dict[str, Any], own: str, model: Path, stock: Stock
) -> None:
    """Not what a pattern makes of it: difference of the stock model's log-probabilities of both."""
    before = f"{far}the cat sat there and saw"
    text = f"{before} 10,000 ships, and the cat"
    reader = load_tokenizer(model)
    context, own_ids, other_ids = (
        reader.read(f"{before}{words}").token_ids_N for words in ("", f" {own}", " 20,000")
    )
    if "position" in which:
        assert reader.read(text).pieces[len(context)].strip() in "10,000"
        which = {"position": f"{len(context)}:{len(own_ids)}" if which["position"] else len(context)}
    found = explain(text, model, **FLAGS, **which, instead="20,000")
    begin = found.first_token
    assert (begin > 0) == bool(far)
    difference = log_p(stock, context[begin:], own_ids[begin:]) - log_p(
        stock, context[begin:], other_ids[begin:]
    )
    assert found.facts["contrast"] == [own, "20,000", pytest.approx(difference, abs=5e-5)]
    assert f"“{own}” is so many times as likely as “20,000”" in str(found)


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
@pytest.mark.parametrize("role", ["assistant", "tool", "user"])
def test_an_answer_is_what_the_template_writes_of_it(
    role: str, template: str, content: Any, answer: str, model: Path
) -> None:
    automatic = AutoTokenizer.from_pretrained(model)
    automatic.chat_template = template
    asked = {"role": "user", "content": "a cat? None, at the end |"}
    read = load_tokenizer(automatic).read([asked, {"role": role, "content": content}])
    start, end = read.last_message or (0, 0)
    assert read.text[start:end] == answer
    assert f"{role}: " in read.text[:start] and "<|im_end|>" in read.text[end:]


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


@pytest.mark.parametrize("place", ["generation_config", "config"])
def test_an_answer_ends_at_any_of_the_end_tokens(model: Path, place: str) -> None:
    """Those of the model's generation configuration, or of its configuration."""
    stock = AutoModelForCausalLM.from_pretrained(model).float().eval()
    asked = {"tokenizer": str(model), "short_context_length": S, "generate": 6, "targets": 1}
    whole = explain(TEXT, stock, **asked).text.token_ids_N.tolist()
    end = whole[-2]
    getattr(stock, place).eos_token_id = [end, 1]
    assert (
        explain(TEXT, stock, **asked).text.token_ids_N.tolist() == whole[: whole.index(end, len(whole) - 6)]
    )


def test_the_summary_adds_up_and_every_face_tells_the_same(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = explain(TEXT, model, short_context_length=S, targets=4)
    assert "(long_context_length N sets another number)" in caplog.text  # as Python calls it
    said = str(found)
    perplexities = [float(number) for number in re.findall(r"([\d.]+) with ", said)[:3]]
    columns = ["long_context_loss", "window_short_loss", "window_swapped_loss"]
    np.testing.assert_allclose(perplexities, np.exp(found.losses[columns].mean()), atol=0.051)
    totals, recovered = np.transpose([[one["total_effect"], one["recovered"]] for one in found.targets])
    (share,) = re.findall(r"recover (-?\d+)% of the effect", said)
    assert int(share) / 100 == pytest.approx(totals @ recovered / totals.sum(), abs=0.006)
    rows = re.findall(r"^(\d+)  .*: <?([\d.]+)% with the last \d+ tokens", said, re.MULTILINE)
    shown = {int(position): float(probability) for position, probability in rows}
    told = {target["position"]: 100 * target["probability"] for target in found.targets}
    assert shown == pytest.approx(told, abs=0.51)
    assert found.record["summary"] == found.summary and len(found.record["targets"]) == 4
    found.save(tmp_path / "page.html")
    (data,) = DATA.findall((tmp_path / "page.html").read_text())
    assert json.loads(data).items() >= found.record.items()
    assert found._repr_html_().startswith("<iframe srcdoc=")


PER_SECOND = 500


def explained_within(budget: float, model: Path, **named: Any) -> tuple[Explanation, float]:
    """An explanation, and its seconds by a clock on which they are forward tokens, whatever computes them."""
    nums: list[int] = []
    run = CausalLM._run

    def counted(self: CausalLM, tokens: torch.Tensor, *rest: Any, **options: Any) -> Any:
        nums.append(tokens.numel())
        return run(self, tokens, *rest, **options)

    clock = mock.Mock(monotonic=lambda: sum(nums) / PER_SECOND)
    with mock.patch.object(CausalLM, "_run", counted), mock.patch.object(explanation, "time", clock):
        found = explain(TEXT, model, **FLAGS, long_context_length=L, budget=budget, **named)
    return found, sum(nums) / PER_SECOND


def test_a_budget_is_kept(model: Path) -> None:
    """First by passages for every prediction; narrowed ones are those of any other budget."""
    whole, _ = explained_within(3600, model)
    nums = []
    for budget in (8, 4, 2):
        found, seconds = explained_within(budget, model)
        assert seconds <= 1.1 * budget
        narrowed = [target for target in found.targets if target["is_narrowed"]]
        assert all(target in whole.targets for target in narrowed)
        nums.append((len(found.targets), len(narrowed)))
        assert ("A longer --budget explains" in str(found)) == (nums[-1][0] < NUM_TARGETS)
        assert ("whole passages" in str(found)) == (nums[-1][0] > nums[-1][1])
    assert all(target["is_narrowed"] for target in whole.targets)
    assert len(whole.targets) == nums[0][0] == NUM_TARGETS > nums[1][0] > nums[2][0] >= 1
    assert NUM_TARGETS > nums[0][1] >= 1
    with pytest.raises(InputError, match="is too short: loading"):
        explained_within(1, model)


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [
        # The first pass took 2 seconds for 100 tokens. Losses of 150; sources of 3 predictions, each of 400
        # for their passages and of 600 to narrow these down.
        (1000, "losses in about 3 seconds, sources of 3 predictions in about 63 in all"),
        # Less 10 of loading and 3 of losses 37 are left, after passages 13, in which one prediction ends.
        (50, "sources of 3 predictions (1 narrowed down, the others as passages) in about 39 in all"),
        (30, "sources of 2 of 3 predictions (0 narrowed down, the others as passages) in about 19 in all"),
        (None, "losses in about 3 seconds, sources of 3 predictions in about 103 in all"),  # 100 * 100 / 2
    ],
)
def test_it_is_said_how_long_it_will_take(
    budget: float | None, seconds: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(explanation, "likely_tokens", lambda *about: (400, 600))
    clock: Any = mock.Mock(seconds=10, seconds_of_passes=2, budget=budget)
    with caplog.at_level("INFO"):
        explanation._plan(clock, Explaining(targets=3), 100, 150, 16, 3)
    assert "100 tokens: losses in about 3 seconds, " in caplog.text and seconds in caplog.text


def test_what_a_prediction_takes_by_hand() -> None:
    """1,000 tokens in 31.25 groups: each alone and without it all others, 25 choices, 16 near tokens each."""
    passages = (2 * 31.25 + 25 + 2 * 4 / 2) * 16 + 2 * 4 * 32
    narrowing = 20 * 16 + 40 * 32 + (4 / 2 + 2) * 1000 / 2
    assert explanation.likely_tokens(1000, 16, 4) == (passages, narrowing) == (1720, 3600)
    # Loading took 10 seconds; losses take 3, a prediction 20, and its trial 4, which is one too many.
    clock: Any = mock.Mock(seconds=10, seconds_of_passes=2, budget=36)
    with (
        mock.patch.object(explanation, "likely_tokens", return_value=(1000, 9)),
        pytest.raises(InputError, match="too short"),
    ):
        explanation._plan(clock, Explaining(budget=36), 100, 150, 16, 3)


def test_losses_take_as_long_as_is_said(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PER_SECOND", 1)
    shown: list[Explanation] = []
    with (
        caplog.at_level("INFO"),
        mock.patch.object(explanation, "likely_tokens", return_value=(1, 1)) as likely,
    ):
        found, _ = explained_within(1e6, model, at="cat that sat there", show=shown.append)
    said = int(re.search(r"losses in about (\d+) sec", caplog.text)[1])
    assert said == pytest.approx(shown[0].facts["num_forward_tokens"], rel=0.1)
    (target,) = found.targets
    likely.assert_called_once_with(mock.ANY, S + target["end"] - target["position"] - 1, 4)


def test_of_a_character_s_tokens_each_is_a_part(model: Path) -> None:
    characters_N2 = load_tokenizer(model).read(TEXT).characters_N2
    goes_on_N = (characters_N2[1:] == characters_N2[:-1]).all(axis=1)
    last = int(np.flatnonzero(goes_on_N[:-1] & ~goes_on_N[1:])[-1]) + 1
    assert [explain(TEXT, model, **FLAGS, position=one).targets[0]["is_part"] for one in (last, 8)] == [
        True,
        False,
    ]


def test_a_budget_ends_a_prediction_that_takes_longer_than_thought(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "likely_tokens", lambda *about: (1, 1))
    found, seconds = explained_within(1.05, model)
    assert seconds <= 1.1 * 1.05 and not found.targets and "Explained: 0 of " in str(found)


def test_without_a_budget_there_is_a_page(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine: the colored text at once, and the strongest prediction."""
    monkeypatch.setattr(Explaining, "seconds", 1e-9)
    shown: list[list[dict[str, Any]]] = []
    found = explain(TEXT, model, **FLAGS, show=lambda one: shown.append(one.targets))
    assert shown == [[], found.targets]
    strongest = found.losses["position"][found.losses["window_swapped_divergence"].idxmax()]
    assert [target["position"] for target in found.targets] == [strongest]


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
    assert _percent(probability) == said


@pytest.fixture
def flags(model: Path, tmp_path: Path) -> list[str]:
    """Flags of two predictions in a file `text`."""
    (tmp_path / "text").write_text(TEXT)
    words = f"--model {model} --short-context-length 4 --targets 2 --text-file {tmp_path}/text"
    return [*words.split(), "--out", f"{tmp_path}/x.html"]


def test_what_is_printed(
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: Typed,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The text's end, which the model has positions for; colors for terminals alone; nothing hostile."""
    words = [program.STAGE.main, "explain.py", *flags]
    _, said, _ = typed(*words, "--json", tmp_path / "data.json", "--csv", tmp_path / "data.csv")
    record = json.loads((tmp_path / "data.json").read_text())
    rows = pd.read_csv(tmp_path / "data.csv")
    assert len(record["targets"]) == rows["position"].nunique() == 2
    assert len(record["losses"]["position"]) == 64 - S - 2
    for values in (rows["effect"], rows["total_effect"], record["losses"]["long_context_loss"]):
        assert [float(f"{value:.4g}") for value in values] == [*values] and max(values) > 0
    shown = said.partition("\n")[0]
    assert TEXT.rstrip().endswith(shown.rstrip()) and len(shown) > 30 and "\x1b" not in said
    assert "of which the last 64 are measured" in caplog.text
    assert f"Predicted tokens: {64 - S - 2}. Perplexity" in said
    (tmp_path / "text").write_text(HOSTILE)
    _, said, _ = typed(*words)
    assert not set(said) & set("\x1b\x07\x9b\u202e\u2066")
    assert r"\x1b[31m alert \x07 \x9b31m turned \u202e round" in said
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b[48;5;" in typed(*words)[1]


@pytest.mark.parametrize("start", ["pipeline/explain.py", "sparsity explain"])
def test_the_colored_page_is_on_disk_before_a_prediction_is_explained(
    start: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    """And says how the rest is explained."""

    def fails(search: Search, target: int) -> None:
        raise InputError("here the power fails")

    monkeypatch.setattr(Search, "passages", fails)
    called = main if start.startswith("sparsity") else program.STAGE.main
    code, *_ = typed(called, *start.split(), *flags, "--budget", "1h")
    page = json.loads(*DATA.findall((tmp_path / "x.html").read_text()))
    assert (code, page["targets"], len(page["wanted"]), len(page["pieces"])) == (2, [], 2, 64)
    again = f"sparsity explain --model {flags[1]} --short-context-length 4 --text-file {tmp_path}/text"
    assert shlex.split(page["command"]) == again.split()


def test_an_output_on_standard_output_is_all_of_it(flags: list[str], typed: Typed) -> None:
    _, said, _ = typed(program.STAGE.main, "explain.py", *flags, "--json", "-", "--csv", "/dev/null")
    assert len(json.loads(said)["targets"]) == 2
    assert Path("/dev/null").is_char_device() and not Path("-").exists()


GIVEN = "--text-file {folder}/text "


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (GIVEN + "--json - --csv -", "--json and --csv are both -"),
        ("--text-file {folder}/blank", "the text is empty"),
        ("--text-file {folder}/two", "the last prediction has 2 tokens before it, and needs 6"),
        ("--text-file {folder}/latin", "not text in UTF-8: 'utf-8' codec can't decode byte 0xef"),
        (GIVEN + "--tokenizer bpe:300", "the tokenizer is of type int; give a tokenizer.json"),
        (GIVEN + "--swap-text-file {folder}/short", "the swapped text has 1 tokens, and 256"),
        ("--text-file {folder}/short --out {folder}/short", "is an input, which the output would"),
        (GIVEN + "--out {model}/config.json", "is an input, which the output would"),
        (GIVEN + "--json {folder}/short/a.json", "nothing can be written into"),
        (GIVEN + "--budget soon", "soon is not a duration above 0, such as 90s"),
        (GIVEN + "--instead dog", "--instead needs --at or --position"),
        ("--chat {folder}/short", "is not a chat: a JSON list"),
        ("--chat {folder}/list", "is not a chat: a JSON list"),
        ("--chat {folder}/none", "there are no messages"),
        ("--chat {folder}/null", "the last message has no content"),
        ("--chat {folder}/no-parts", "the last message has no content"),
        ("--chat {folder}/no-key", "the last message has no content"),
        ("--chat {folder}/blank-answer", "the last message has no content"),
        (
            "--chat {folder}/picture",
            "parts that are text, unlike {'role': 'assistant', 'content': [{'type': 'image'",
        ),
        ("--chat {folder}/number", "parts that are text, unlike {'role': 'assistant', 'content': 7}"),
        ("--chat {folder}/asked --tokenizer {folder}/bare.json --generate 2", "no chat template"),
        (GIVEN + "--at dog", "dog' does not occur in the text"),
        (GIVEN + "--at cat:3", "--at 'cat:3': “cat” occurs 2 times"),
        (GIVEN + "--at The", "has 0 tokens before it"),
        (GIVEN + "--position 50:40", "--position 50:40 is outside"),
        (GIVEN + "--position five", "five is neither a token N, from 0, nor a range of tokens A:B"),
        (GIVEN + "--targets 2 --whole-answer", "not allowed with argument"),
        (GIVEN + "--whole-answer", "--whole-answer needs --chat or --generate"),
        (GIVEN + "--position 500", "--position 500 is outside the text of"),
        (GIVEN + "--position 5", "give words that stand later, or a smaller --short-context-length"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    words: str,
    sentence: str,
    model: Path,
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
        "bare.json": Tokenizer.from_file(f"{model}/tokenizer.json").to_str(),
        **{name: json.dumps([*CHAT, {"role": "assistant", **of}]) for name, of in last_messages.items()},
    }
    for name, content in files.items():
        (folder / name).write_text(content)
    flags = f"--model {model} --short-context-length 4 --out {tmp_path}/x.html"
    asked = f"{flags} {words.format(folder=folder, model=model)}"
    code, said, error = typed(program.STAGE.main, "explain.py", *asked.split())
    assert (code, said) == (2, "")
    assert sentence in error and error.splitlines()[-1].startswith("explain.py: error: ")
    assert list(tmp_path.iterdir()) == [] and (folder / "short").read_text() == "at"
