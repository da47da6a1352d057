"""The library: its numbers are those of the stages and of stock models, for models and texts of any kind."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from hugging_face_families import make_model, save_model
from measured_documents import (
    DOCUMENTS,
    SHORT,
    measure,
    word_level,
    word_tokenizer,
    write_checkpoint,
    write_data,
)
from naive_predictions import Stock, behind, naive_losses, stock_hugging_face
from olmo.model import OLMo
from sparsity_length.programs import influential_tokens as influential_stage
from sparsity_length.programs import loss_differences as loss_stage
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from sparsity_length import InputError, explain, influential_tokens, losses
from sparsity_length.measuring import contexts, frames
from sparsity_length.models import given
from sparsity_length.results.read import Results
from sparsity_length.text.tokenizer import train_bpe

TEXT = "The cat sat on a mat, and the cat that sat there saw a naïve dog in the hall. "
S = 4
VALUES = ["long_context_loss", "short_context_loss", "loss_difference", "divergence"]


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.from_str(train_bpe([TEXT * 4], 280).to_json())


@pytest.fixture(scope="module")
def llama(bpe: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 64 positions."""
    return Path(save_model(tmp_path_factory.mktemp("hub") / "tiny-llama", bpe.to_str()))


@pytest.mark.parametrize(("measure_text", "asked"), [(losses, {}), (explain, {"targets": 1})])
def test_unknown_tokens_are_told(
    measure_text: Callable[..., Any], asked: dict[str, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = save_model(
        tmp_path / "words", word_level(*dict.fromkeys(["?", *TEXT.split()]), unk_token="?").to_str()
    )
    measure_text(TEXT * 2, model, short_context_length=S, **asked)
    assert "cannot spell" not in caplog.text
    measure_text(TEXT * 2 + "Мы тут.", model, short_context_length=S, **asked)
    assert "5.0% of the tokens" in caplog.text


@pytest.mark.parametrize("bos_token_ids", [pytest.param((), marks=pytest.mark.slow), (7, 3)])
def test_the_numbers_are_those_of_the_stages(
    bos_token_ids: tuple[int, ...], tmp_path: Path, make_olmo: Callable[..., OLMo]
) -> None:
    """First chunks of five documents: each with a null, two swaps of trials and one of the search."""
    length = 11  # which all five have
    words_of_length = ["--long-context-length", str(length), "--max-chunks-per-document", "1"]
    write_data(tmp_path / "data", bos_token_ids=bos_token_ids)
    words = word_tokenizer(bos_token_ids)
    model = write_checkpoint(tmp_path / "run", make_olmo(seed=0))
    results = measure(loss_stage, tmp_path, *words_of_length)
    rules = ["--rules", "leave_one_out_divergence", "leave_one_out", "--k", "1", "2", "4"]
    measure(influential_stage, tmp_path, *words_of_length, "--ablation", "swap", *rules)
    texts = [" ".join(f"w{token_id}" for token_id in tokens[:length]) for tokens in DOCUMENTS.values()]
    found = losses(texts, model, words, short_context_length=SHORT, long_context_length=length)
    found = found[found["position"] >= 8]
    expected = Results(results).frame("loss_differences")
    expected = expected.rename(columns={"short_context_divergence": "divergence"})
    assert found["token_id"].tolist() == expected["target_token_id"].tolist()
    np.testing.assert_allclose(found[VALUES], expected[VALUES], atol=5e-6)

    measure(loss_stage, tmp_path, *words_of_length, "--context-lengths", "2", "8")
    kept = Results(results).frame("length_losses")
    found = losses(texts, model, words, context_lengths=(8, 2), long_context_length=length)
    found = found.sort_values(["text", "context_length", "position"])
    assert found["context_length"].tolist() == np.repeat(kept["context_length"], 3).tolist()
    for name, values in (("loss", "losses"), ("divergence", "divergences")):
        np.testing.assert_allclose(found[name], np.concatenate(kept[values]), atol=5e-6)
        np.testing.assert_allclose(kept[f"mean_{name}"], kept[values].map(np.mean), atol=1e-6)

    asked = {"k": (1, 2, 4), "num_targets": 3, "short_context_length": SHORT}
    for rule in ("leave_one_out_divergence", "leave_one_out"):
        found = influential_tokens(
            texts[0], make_olmo(seed=0), words, **asked, rule=rule, swap_text=" ".join(texts[1:])
        )
        selected, sparse, k_stars = (
            Results(results)
            .frame(name)
            .query(f"rule == '{rule}' and document_id == '{next(iter(DOCUMENTS))}'")
            for name in ("influential_tokens", "sparse_context_losses", "dependency_sparsity")
        )
        chosen = selected.query("distant_context == 'own'")
        assert found["source_position"].tolist() == chosen["context_position"].tolist()
        assert found["source_token"].str.strip().tolist() == [f"w{id_}" for id_ in chosen["context_token_id"]]
        np.testing.assert_allclose(found["influence"], chosen["influence"], atol=5e-6)
        at_k = found[found["rank"].isin([1, 2, 4])]
        assert found.drop(at_k.index)["sparse_context_loss"].isna().all()
        sparse = sparse.set_index("distant_context").rename(
            columns={"swapped_loss": "baseline_loss", "swapped_divergence": "baseline_divergence"}
        )
        tried = ["sparse_context_loss", "sparse_context_divergence"]
        columns = [*tried, "long_context_loss", "short_context_loss", "baseline_loss", "baseline_divergence"]
        np.testing.assert_allclose(at_k[columns], sparse.loc["own", columns], atol=5e-6)
        null = sparse.loc["other_document", tried]
        null = null if rule == "leave_one_out" else np.full(null.shape, np.nan)  # the other needs none
        np.testing.assert_allclose(at_k[[f"null_{name}" for name in tried]], null, atol=5e-6)
        mean_log2_k = k_stars.query("criterion == 'divergence'")["mean_log2_k"].astype(float)
        np.testing.assert_allclose(found[found["rank"] == 1]["mean_log2_k"], mean_log2_k, atol=1e-5)


def naive_loss(stock: Stock, ids: np.ndarray, num: int, length: int) -> float:
    """Loss of the last token, behind a chunk of the `num` tokens before it, `length` of which are seen."""
    (loss,) = naive_losses(stock, num, [(ids[-num - 1 :], range(num - length, num))])
    return loss


@pytest.mark.parametrize("bos", [pytest.param([], marks=pytest.mark.slow), [3]])
def test_a_text_of_several_chunks_has_a_row_a_token_and_the_stock_model_s_losses(
    bpe: Tokenizer, bos: list[int]
) -> None:
    model = make_model("llama", attention="eager", vocab_size=bpe.get_vocab_size())
    stock = behind(stock_hugging_face(model), bos)
    text = TEXT * 5
    ids = np.array(bpe.encode(text).ids)
    if bos:  # before every chunk and every short context, at position ID 0
        bpe = Tokenizer.from_str(bpe.to_str())
        bpe.post_processor = processors.TemplateProcessing(single="B $A", special_tokens=[("B", bos[0])])
    frame = losses(["", text, "The"], model, bpe, short_context_length=S)
    assert frame["text"].unique().tolist() == [1, 2]  # empty texts have no row
    frame = frame[frame["text"] == 1]
    assert len(ids) > 2 * 64 and frame["position"].tolist() == list(range(len(ids)))
    assert "".join(frame["token"]) == text and frame["token_id"].tolist() == ids.tolist()
    # Half a chunk of 64, or all that there is.
    later = frame[frame["position"] > S]
    assert (later["num_long_context_tokens"] >= later["position"].clip(upper=32 - len(bos))).all()
    assert frame[VALUES].isna().all(axis=1).tolist() == [place <= S for place in range(len(ids))]
    by_length = losses(["The", text], model, bpe, context_lengths=(1, 9, 40))
    assert by_length["text"].unique().tolist() == [1]  # the other has no token with 40 before it
    assert by_length["context_length"].tolist() == [1, 9, 40] * (len(ids) - 40)
    assert by_length["position"].tolist() == np.repeat(range(40, len(ids)), 3).tolist()
    by_short = frame.rename(columns={"short_context_loss": "loss"}).assign(context_length=S)
    for row in pd.concat([by_short.iloc[S + 1 :: 7], by_length.iloc[::23]]).itertuples():
        num = row.num_long_context_tokens
        expected = [
            naive_loss(stock, ids[: row.position + 1], num, seen) for seen in (num, row.context_length)
        ]
        np.testing.assert_allclose([row.long_context_loss, row.loss], expected, atol=1e-5)
        assert (row.divergence < 1e-6) == (row.context_length == num)
    last = losses(text, model, bpe, context_lengths=9, long_context_length=64, num_targets=5)
    of_all = by_length[by_length["context_length"] == 9].set_index("position")["loss"].tail(5)
    pd.testing.assert_series_equal(last.set_index("position")["loss"], of_all, atol=1e-5)
    chosen = influential_tokens(text, model, bpe, k=(1, 3), short_context_length=S)
    joined = chosen.merge(frame, on=["position", "token"], suffixes=("", "_of_losses"))
    same = joined[joined["num_long_context_tokens"] == joined["position"]]
    np.testing.assert_allclose(same["long_context_loss"], same["long_context_loss_of_losses"], atol=1e-5)
    # As many tokens exactly as there are.
    few = partial(influential_tokens, text, model, bpe, short_context_length=S, num_targets=3, k=(1, 30))
    pd.testing.assert_frame_equal(few(screen=57), few())


def test_models_tokenizers_and_texts_of_every_kind_tell_the_same(llama: Path, bpe: Tokenizer) -> None:
    expected = losses([TEXT, TEXT[:40]], str(llama), short_context_length=S)
    in_memory = make_model("llama", attention="eager", vocab_size=bpe.get_vocab_size()).train()
    in_memory.model.layers[0].eval()
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, model_max_length=8)
    series = pd.Series([TEXT, TEXT[:40]], index=["b", "a"])
    for model, tokenizer, texts in (
        (llama, None, series),
        (in_memory, fast, Dataset.from_dict({"text": [TEXT, TEXT[:40]]})["text"]),
        (in_memory, str(llama), (text for text in series)),
    ):
        pd.testing.assert_frame_equal(
            losses(texts, model, tokenizer, short_context_length=S), expected, atol=1e-5, rtol=0
        )
    # A model in memory is as it was.
    assert in_memory.training and not in_memory.model.layers[0].training
    assert all(parameter.requires_grad for parameter in in_memory.parameters())
    assert in_memory.config._attn_implementation == "eager"


def test_a_context_beyond_a_default_chunk_has_a_longer_one(bpe: Tokenizer) -> None:
    model = make_model("llama", 0, "eager", vocab_size=bpe.get_vocab_size(), max_position_embeddings=2048)
    ids = np.array(bpe.encode(TEXT * 60).ids)
    (row,) = losses(TEXT * 60, model, bpe, context_lengths=1100, num_targets=1).itertuples()
    num = row.num_long_context_tokens
    assert 1100 <= num < 1100 + 512
    assert row.loss == pytest.approx(naive_loss(stock_hugging_face(model), ids, num, 1100), abs=1e-5)


def test_the_bar_of_losses_moves_within_a_chunk_and_ends_at_its_total(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"model": str(llama), "context_lengths": (2, 10)}
    expected = losses([TEXT, TEXT * 3], **asked)
    progress = mock.MagicMock()
    monkeypatch.setattr(frames, "progress", progress)
    monkeypatch.setattr(contexts, "_TOKENS_PER_BATCH", 100)
    found = losses([TEXT, TEXT * 3], **asked)
    pd.testing.assert_frame_equal(found, expected, atol=1e-5, rtol=0)
    steps = [call.args[0] for call in progress.return_value.__enter__.return_value.update.call_args_list]
    assert progress.call_args.args[-1] == sum(steps) == found["context_length"].sum()
    assert max(steps) <= 100 and len(steps) >= len(found) // 20


def test_many_texts_give_a_list_of_what_each_gives_alone(llama: Path) -> None:
    texts = [TEXT[:50], TEXT[10:50]]
    asked = {"short_context_length": S, "targets": 2, "budget": 3600}
    with mock.patch.object(given, "load_causal_lm", wraps=given.load_causal_lm) as load:
        many = explain(iter(texts), str(llama), **asked)
    assert load.call_count == 1
    assert isinstance(many, list) and [one.text.text for one in many] == texts
    for text, found in zip(texts, many, strict=True):
        alone = explain(text, str(llama), **asked)
        pd.testing.assert_frame_equal(found.losses, alone.losses, atol=1e-5)
        assert found.frame["source"].tolist() == alone.frame["source"].tolist()
    assert len(explain(texts[1:], str(llama), **asked)) == 1


@pytest.mark.parametrize(
    ("texts", "arguments", "sentence"),
    [
        (pd.DataFrame({"a": [TEXT]}), {}, "texts are of type DataFrame; give a string"),
        (TEXT.encode(), {}, "texts are of type bytes"),
        (None, {}, "texts are of type NoneType"),
        (np.array(TEXT), {}, "texts are of type ndarray"),
        ([], {}, "there is nothing to measure"),
        ([TEXT, 3], {}, "a text is a string"),
        ([-1] * 60, {}, "whole numbers from 0 on"),
        ([[[1, 2], [3]]], {}, "a text is a string"),
        ([TEXT, ""], {"targets": 2}, "^text 1: the text is empty"),
        (pd.DataFrame({"a": [TEXT]}), {"targets": 2}, "one column of a table"),
        ([], {"targets": 1}, "the text is empty, or there are no messages"),
        (np.array([], int), {"targets": 1}, "the text is empty, or there are no messages"),
        # Four swaps, each as long as text and answer.
        ([5, 6], {"generate": 6, "swap_text": "a"}, "and 32 are needed"),
        (TEXT, {"at": "mat", "instead": " "}, "^instead compares two words, not “mat” with “”"),
        (TEXT, {"at": "mat", "instead": " mat "}, "compares two words, not “mat” with “mat”"),
        (TEXT, {"at": "naïve", "instead": "nai\u0308ve"}, "compares two words, not “naïve” with"),
        (TEXT, {"model": {}}, "the model is of type dict; give a path"),
        (TEXT, {"model": make_model("llama")}, "comes without its tokenizer"),
        (TEXT, {"model": make_model("llama"), "tokenizer": "olmo"}, "they do not belong together"),
        (TEXT, {"long_context_length": 5}, "5 tokens has no target with 5 tokens before it"),
        (TEXT, {"context_lengths": (8, 64)}, "64 tokens has no target with 64 tokens before it"),
        (["", "The"], {"context_lengths": 8}, "no token of 2 of 2 texts has 8 tokens before it"),
        (TEXT, {"context_lengths": ()}, "context_lengths: no value is given"),
        (TEXT, {"short_context_length": 0}, "short_context_length: 0 is not from 1"),
        (TEXT, {"rule": "gready"}, "did you mean 'greedy'"),
        (TEXT, {"ablation": "substitute"}, "ablation 'substitute'"),
        (TEXT, {"long_context_length": 0}, "long_context_length: 0 is not from 1"),
        (TEXT, {"k": (1.5,)}, "k: 1.5 is not a whole number"),
        (TEXT, {"k": ()}, "k: no value is given"),
        (TEXT, {"num_targets": 0}, "num_targets: 0 is not from 1"),
        (TEXT, {"seed": -1}, "seed: -1 is not from 0"),
        (TEXT, {"screen": -1}, "screen: -1 is not from 1"),
        (TEXT, {"trial_swaps": True}, "trial_swaps: True is not a whole number"),
        (TEXT, {"targets": "some"}, "targets: "),
        (TEXT, {"sources": 0}, "sources: 0 is not from 1"),
        (TEXT, {"unit": "line"}, "unknown unit 'line'"),
        (TEXT, {"budget": 0}, "budget: 0 is not from 1"),
        (TEXT, {"k": float("inf")}, "k: inf is not a whole number"),
        (TEXT, {"num_targets": np.bool_(True)}, "num_targets: True is not a whole number"),
        (TEXT, {"context_lengths": b"9"}, "context_lengths: b'9' is not a whole number"),
        (TEXT, {"rule": ["recency", "random"]}, "unknown rule"),
        (TEXT, {"bos": [5]}, "unknown bos"),
        (TEXT, {"tokenizer": []}, "the tokenizer is of type list"),
        (TEXT, {"special_tokens": "no"}, "special_tokens: .no. is neither True nor False"),
        (TEXT, {"dtype": 5}, "unknown dtype '5'"),
        (TEXT, {"rope": 5}, "must be KIND:FACTOR"),
        (TEXT, {"device": True}, "^device True cannot be used"),
        (TEXT, {"whole_answer": "no"}, "whole_answer: 'no' is neither True nor False"),
        (TEXT, {"swap_text": 5}, "a text is a string"),
        (TEXT, {"k": 1, "swap_text": "a"}, "are needed"),
        (TEXT, {"generate": 10**9}, "0 are left for the text; let it write fewer"),
        ("a", {"generate": 1}, "needs a text of 2 tokens"),
        (TEXT, {"instead": 5}, "^instead needs at or position"),
        (TEXT, {"at": "a", "position": 3}, "all say what to explain"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    texts: Any, arguments: dict[str, Any], sentence: str, llama: Path
) -> None:
    functions = (losses, influential_tokens, explain)
    call = next(one for one in functions if arguments.keys() <= {*inspect.signature(one).parameters})
    with pytest.raises(InputError, match=sentence):
        call(texts, **{"model": str(llama), "short_context_length": S} | arguments)


@pytest.mark.parametrize(
    ("function", "asked"),
    [
        (losses, {"num_targets": 5}),
        (losses, {"context_lengths": 5}),
        (influential_tokens, {"num_targets": 5, "k": 4, "search_swaps": 1}),
        (explain, {"targets": 5, "sources": 3, "generate": 2}),
    ],
)
def test_a_number_of_any_type_is_that_number(
    function: Callable[..., Any], asked: dict[str, int], llama: Path
) -> None:
    numbers = {**asked, "short_context_length": S, "long_context_length": 24}
    kinds = (str, np.array, np.float32, torch.tensor, np.int8)
    given_as = {name: kind(number) for (name, number), kind in zip(numbers.items(), kinds, strict=False)}
    expected, found = (function(TEXT, str(llama), **each) for each in (numbers, given_as))
    pd.testing.assert_frame_equal(getattr(found, "losses", found), getattr(expected, "losses", expected))
