"""Whether tokens and model belong together: one answer for a stage, explain and the library."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hugging_face_families import make_model
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from sparsity_length import explain, influential_tokens, losses
from sparsity_length.cli import InputError
from sparsity_length.measuring.given import refuse_foreign_tokens
from sparsity_length.text.tokenizer import load_tokenizer, train_bpe

TEXT = "The cat sat on a mat, and the cat that sat there saw a naïve dog in the hall. " * 2
OTHER_TEXT = "Words of quite another kind: 0123456789, zigzag, fuzzy, quiz, jinx, vortex. " * 4
Change = Callable[[Tokenizer], Tokenizer | None]


def _bpe(text: str = TEXT, size: int = 290) -> Tokenizer:
    return Tokenizer.from_str(train_bpe([text * 9], size).to_json())


def _without_merges(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer of the same vocabulary that reads single bytes."""
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
    tokenizer, its_own = (load_tokenizer(tmp_path / name) for name in ("data.json", "own.json"))
    given = num_rows, "m", its_own, [np.array(used)], tokenizer
    if outcome == "fits":
        return refuse_foreign_tokens(*given)
    with pytest.raises(InputError, match=outcome):
        refuse_foreign_tokens(*given)
    return None


def test_a_model_without_bos_is_not_given_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = _with_added("<s>")(_bpe())
    for name in ("without", "with"):
        make_model("llama", vocab_size=300).save_pretrained(tmp_path / name)
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
        bos = [("<s>", tokenizer.token_to_id("<s>"))]
        tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=bos)
    first, second = (str(tmp_path / name) for name in ("with", "without"))
    with pytest.raises(
        InputError, match="puts <s> before a text, is .* that of without, .*, which puts nothing"
    ):
        losses(TEXT, second, first, short_context_length=4)
    assert "before a text" not in caplog.text
    losses(TEXT, first, second, short_context_length=4)
    assert "with was trained with <s> before a text, and reads this without it" in caplog.text


def test_every_face_refuses_a_foreign_tokenizer_and_takes_a_padded_model(tmp_path: Path) -> None:
    own = _bpe()
    other = _bpe(OTHER_TEXT)
    for name, tokenizer, num_rows in (("own", own, 290), ("padded", own, 320), ("other", other, 290)):
        make_model("llama", vocab_size=num_rows).save_pretrained(tmp_path / name)
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    model, padded, stranger = (str(tmp_path / name) for name in ("own", "padded", "other"))
    for call in (
        lambda: losses(TEXT, model, tokenizer=other, short_context_length=4),
        lambda: losses(TEXT, model, tokenizer=stranger, short_context_length=4),
        lambda: explain(TEXT, model, tokenizer=f"{stranger}/tokenizer.json", short_context_length=4),
        lambda: influential_tokens(TEXT, model, tokenizer=stranger, short_context_length=4, k=(1,)),
    ):
        with pytest.raises(InputError, match="is another tokenizer than that of own"):
            call()
    losses(TEXT, padded, tokenizer=model, short_context_length=4)
