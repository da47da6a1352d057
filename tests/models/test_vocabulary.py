"""Whether tokens and model belong together: one answer for a stage, explain, the library and evaluators."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hugging_face_families import make_model
from measured_documents import DOCUMENTS, measure, write_checkpoint, write_data
from olmo.model import OLMo
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedModel

from pipeline import evaluate_tokens as evaluate_stage
from pipeline import influential_tokens as influential_stage
from pipeline import loss_differences
from pipeline.cli import InputError
from pipeline.models.interface import CausalLM
from pipeline.models.load import find_model
from pipeline.models.vocabulary import OwnTokenizer, refuse_foreign_tokens
from pipeline.results.read import read_artefact
from pipeline.text.tokenizer import load_tokenizer, train_bpe
from sparsity_length import explain, influential_tokens, losses

TEXT = "The cat sat on a mat, and the cat that sat there saw a naïve dog in the hall. " * 2
OTHER_TEXT = "Words of quite another kind: 0123456789, zigzag, fuzzy, quiz, jinx, vortex. " * 4
Change = Callable[[Tokenizer], Tokenizer | None]


class Sized(CausalLM):
    """A model of so many rows, of which nothing else is asked."""

    def __init__(self, num_rows: int) -> None:
        self.rows = num_rows

    vocabulary_size = property(lambda self: self.rows)  # type: ignore[assignment]


Sized.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


def _bpe(text: str = TEXT, size: int = 290) -> Tokenizer:
    return Tokenizer.from_str(train_bpe([text * 9], size).to_json())


def _without_merges(tokenizer: Tokenizer) -> Tokenizer:
    """Of the same vocabulary, and reads single bytes."""
    description = json.loads(tokenizer.to_str())
    description["model"]["merges"] = description["model"]["merges"][:5]
    return Tokenizer.from_str(json.dumps(description))


def _with_added(token: str) -> Change:
    def changed(tokenizer: Tokenizer) -> Tokenizer:
        tokenizer.add_tokens([AddedToken(token, special=True)])
        return tokenizer

    return changed


@pytest.mark.parametrize(
    ("change", "num_rows", "used", "outcome"),
    [
        (lambda own: own, 290, [5], "fits"),
        (lambda own: own, 4000, [5], "fits"),  # its own, however far its embedding is padded
        (_with_added("<chat>"), 320, [5], "fits"),  # an unused one of the data's
        (_with_added("<chat>"), 290, [290], "largest ID used: 290"),  # which the model has no row for
        (_with_added("<chat>"), 320, [290], "another tokenizer"),  # which the model's does not know
        (lambda _: _bpe(OTHER_TEXT), 290, [5], "another tokenizer"),  # of the same size
        (_without_merges, 290, [5], "another tokenizer"),  # of the same names and IDs
        (lambda _: _bpe(size=270), 290, [5], "another tokenizer"),  # whose names and IDs it all has
    ],
)
def test_the_whole_tokenizer_is_compared_where_both_are_known(
    change: Change, num_rows: int, used: list[int], outcome: str, tmp_path: Path
) -> None:
    own = _bpe()
    own.save(str(tmp_path / "own.json"))
    changed = change(own)
    assert changed is not None
    changed.save(str(tmp_path / "data.json"))
    tokenizer = load_tokenizer(tmp_path / "data.json", ends_documents=False)
    lies = OwnTokenizer(tmp_path / "own.json")
    given = [np.array(used)], tokenizer, "the data's", tokenizer.vocabulary_size
    if outcome == "fits":
        return refuse_foreign_tokens(Sized(num_rows), "m", lies, *given)
    with pytest.raises(InputError, match=outcome):
        refuse_foreign_tokens(Sized(num_rows), "m", lies, *given)
    return None


def test_models_with_and_without_bos_are_not_measured_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = _with_added("<s>")(_bpe())
    for name in ("without", "with"):
        make_model("llama", vocab_size=300).save_pretrained(tmp_path / name)
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
        bos = [("<s>", tokenizer.token_to_id("<s>"))]
        tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=bos)
    first, second = (str(tmp_path / name) for name in ("with", "without"))
    asked: dict[str, Any] = {"short_context_length": 4, "num_targets": 2, "k": (1,)}
    with pytest.raises(InputError, match="puts <s> before a text, and that of without, .*, nothing: meas"):
        influential_tokens(TEXT, first, judges=[second], **asked)
    assert "before a text" not in caplog.text
    influential_tokens(TEXT, second, judges=[first], **asked)
    assert "with was trained with <s> before a text, and reads this without it" in caplog.text


@pytest.mark.parametrize(
    ("size", "num_rows", "largest", "outcome"),
    [
        (300, 2112, 299, "do not belong together"),  # the smallest input of the report
        (32_000, 50_304, 9, "do not belong together"),
        (2048, 2112, 9, "cannot be told"),
        (50_277, 50_304, 9, "cannot be told"),  # Pythia
        (50_295, 51_200, 9, "cannot be told"),  # Phi-2
        (100_002, 102_400, 9, "cannot be told"),  # DeepSeek-V2
        (300, 48, 47, "cannot be told"),  # no text uses the rest
        (300, 48, 48, "largest ID used: 48"),
    ],
)
def test_sizes_are_compared_where_nothing_else_is_known(
    size: int, num_rows: int, largest: int, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = [np.array([0, largest])], None, "the data's", size
    if outcome == "cannot be told":
        refuse_foreign_tokens(Sized(num_rows), "m", OwnTokenizer(None), *given)
        assert outcome in caplog.text
        return
    with pytest.raises(InputError, match=outcome):
        refuse_foreign_tokens(Sized(num_rows), "m", OwnTokenizer(None), *given)


def test_every_face_refuses_a_foreign_tokenizer_and_takes_a_padded_evaluator(tmp_path: Path) -> None:
    own, other = _bpe(), _bpe(OTHER_TEXT)
    for name, tokenizer, num_rows in (("own", own, 290), ("padded", own, 320), ("other", other, 290)):
        make_model("llama", vocab_size=num_rows).save_pretrained(tmp_path / name)
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    model, judge, stranger = (str(tmp_path / name) for name in ("own", "padded", "other"))
    asked: dict[str, Any] = {"short_context_length": 4, "num_targets": 2}
    for call in (
        lambda: losses(TEXT, model, tokenizer=other, short_context_length=4),
        lambda: losses(TEXT, model, tokenizer=stranger, short_context_length=4),
        lambda: explain(TEXT, model, tokenizer=f"{stranger}/tokenizer.json", short_context_length=4),
        lambda: influential_tokens(TEXT, model, judges=[stranger], **asked, k=(1,)),
    ):
        with pytest.raises(InputError, match="is another tokenizer than that of (own|other)"):
            call()
    found = influential_tokens(TEXT, model, judges=[judge], **asked, k=(1,))
    assert found["judge"].unique().tolist() == ["padded"]


def test_an_evaluator_may_be_padded_and_a_reference_is_compared_without_the_padding(
    tmp_path: Path, make_olmo: Callable[..., OLMo]
) -> None:
    write_data(tmp_path / "data")
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    reference = make_model("llama", vocab_size=64)
    reference.save_pretrained(tmp_path / "padded")
    results = measure(influential_stage, tmp_path)
    measure(evaluate_stage, tmp_path, "--choices", str(results), "--checkpoints", str(tmp_path / "padded"))
    assert set(read_artefact(results, "sparse_context_losses")["judge"]) == {"run", "padded"}
    results = measure(loss_differences, tmp_path, "--reference-model", str(tmp_path / "padded"))
    rows = read_artefact(results, "loss_differences").query("document_id == '00000000000000bb'")
    log_q, log_p = (
        _log_probs(model, DOCUMENTS["00000000000000bb"][:12]) for model in (make_olmo(seed=1), reference)
    )
    expected = (log_p.exp() * (log_p - log_q)).sum(-1)[8:11]
    np.testing.assert_allclose(rows["reference_divergence"], expected, atol=2e-6)


@torch.inference_mode()
def _log_probs(model: OLMo | PreTrainedModel, tokens: np.ndarray) -> torch.Tensor:
    return model(torch.tensor(tokens[None].astype(np.int64))).logits[0, :, :48].log_softmax(-1)


def test_an_olmo_s_tokenizer_lies_in_the_data_folder_beside_if_it_is_as_large_as_it_says(
    tmp_path: Path, make_olmo: Callable[..., OLMo]
) -> None:
    checkpoint = write_checkpoint(tmp_path / "models" / "run", make_olmo())
    (tmp_path / "data").mkdir()
    _bpe().save(str(tmp_path / "data" / "tokenizer.json"))
    own = find_model(str(checkpoint)).own_tokenizer()
    assert own == OwnTokenizer(tmp_path / "data" / "tokenizer.json", is_of_equal_size=True)
    other = load_tokenizer(tmp_path / "data" / "tokenizer.json", ends_documents=False)
    refuse_foreign_tokens(Sized(300), "m", own, [np.array([1])], other, "the data's", 290)
    with pytest.raises(InputError, match="another tokenizer"):
        given = load_tokenizer(_saved(tmp_path / "x.json", _bpe(OTHER_TEXT)), ends_documents=False)
        refuse_foreign_tokens(Sized(290), "m", own, [np.array([1])], given, "the data's", 290)


def _saved(path: Path, tokenizer: Tokenizer) -> Path:
    tokenizer.save(str(path))
    return path
