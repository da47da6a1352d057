"""One text explained: the numbers against the stock model, what is printed, and what is refused."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hugging_face_families import make_model
from measured_documents import write_checkpoint
from olmo.model import OLMo
from transformers import AutoModelForCausalLM, PreTrainedModel

from pipeline import explain as program
from pipeline.cli import InputError, run_stage
from pipeline.measuring import explanation
from pipeline.text.tokenizer import tokenized_text, train_bpe
from sparsity_length import explain

TEXT = "The cat sat on a mat, and the cat that sat there saw a naïve 👩‍👩‍👧 in the مرحبا e\u0301. "
S, KS = 4, (1, 2)
HOSTILE = "red \x1b[31m alert \x07 \x9b31m turned \u202e round \u2066 and back again, again and again"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-NeoX of 64 positions with a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = train_bpe([TEXT * 4, HOSTILE], 268)
    make_model("gpt_neox", vocab_size=tokenizer.vocabulary_size).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.to_json())
    return folder


@torch.inference_mode()
def log_probs(stock: PreTrainedModel, token_ids: np.ndarray, positions: np.ndarray) -> torch.Tensor:
    """The stock model's prediction after tokens at given positions; nothing packed, nothing shared."""
    num_rows = len(token_ids)
    causal = torch.full((num_rows, num_rows), torch.finfo(torch.float32).min).triu(1)[None, None]
    output = stock(
        input_ids=torch.tensor(token_ids)[None], position_ids=torch.tensor(positions)[None],
        attention_mask=causal, use_cache=False,
    )  # fmt: skip
    return output.logits[0, -1].log_softmax(-1)


def test_every_number_is_that_of_the_stock_model(model: Path) -> None:
    stock = AutoModelForCausalLM.from_pretrained(model).float().eval()
    foreign = "a dog ran over the hill and a cow saw the dog, the hill and the sun. " * 3
    frame = explain(TEXT, str(model), short_context_length=S, k=KS, foreign_text=foreign, num_targets=6).frame
    ids = tokenized_text(TEXT, model / "tokenizer.json").token_ids_N[-64:]
    foreign_ids = tokenized_text(foreign, model / "tokenizer.json").token_ids_N
    num_before = len(tokenized_text(TEXT, model / "tokenizer.json").token_ids_N) - len(ids)
    assert len(frame) == 6 and num_before > 0
    for row in frame.itertuples():
        t = row.position - num_before
        seen = np.arange(t)
        long = log_probs(stock, ids[:t], seen)
        short = log_probs(stock, ids[t - S : t], seen[-S:])
        of_foreign = log_probs(stock, np.concatenate([foreign_ids[: t - S], ids[t - S : t]]), seen)
        left = [log_probs(stock, np.delete(ids[:t], i), np.delete(seen, i)) for i in range(t - S)]
        moved = [_divergence(long, prediction) for prediction in left]
        order = np.argsort(-np.array(moved))
        kept = np.sort([*order[:2], *seen[-S:]])
        sparse = log_probs(stock, ids[kept], kept)
        of_bytes = TEXT.encode()[row.byte_start : row.byte_end].decode()
        # Beside the token's own text may stand characters of which it holds some bytes.
        assert row.token_id == ids[t] and row.token in of_bytes and len(of_bytes) - len(row.token) <= 2
        assert row.source_positions == (order[:2] + num_before).tolist()
        found = [
            row.long_context_loss, row.short_context_loss, row.foreign_context_loss,
            row.short_context_divergence, row.source_divergences[0], row.sparse_context_losses[1],
            row.loss_difference, row.specific_gain,
        ]  # fmt: skip
        losses = [-float(prediction[ids[t]]) for prediction in (long, short, of_foreign, sparse)]
        expected = [
            *losses[:3], _divergence(long, short), max(moved), losses[3],
            losses[1] - losses[0], losses[2] - losses[0],
        ]  # fmt: skip
        np.testing.assert_allclose(found, expected, atol=2e-5)


def _divergence(reference: torch.Tensor, other: torch.Tensor) -> float:
    return float((reference.exp() * (reference - other)).sum())


def test_only_rules_that_say_nothing_without_a_null_are_measured_in_it(model: Path) -> None:
    flags = {"short_context_length": S, "k": KS}
    frame = explain(TEXT, str(model), **flags, rules=["greedy", "leave_one_out_divergence"]).frame
    null_losses = frame.set_index("rule")["null_sparse_context_losses"]
    assert all(len(losses) == len(KS) for losses in null_losses["greedy"])
    assert null_losses["leave_one_out_divergence"].isna().all()


def test_which_tokens_are_measured() -> None:
    for num_tokens, given, first_target, num_targets, ks in (
        (40, {}, 20, 20, (1, 4)),
        (3000, {"targets": 5}, 2043, 5, (1, 4)),
        (3000, {"long_context_length": 100}, 20, 80, (1, 4)),
        (20, {"short_context_length": 10, "long_context_length": 14}, 11, 3, (1,)),
    ):
        arguments = program.parser().parse_args(["--model", "m"])
        vars(arguments).update(given)
        lengths, found = explanation.measured_lengths(arguments, num_tokens, 2048)
        found_all = lengths.first_target, lengths.targets_per_chunk, found
        assert found_all == (first_target, num_targets, ks), (num_tokens, given)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["explain.py", *words])
    run_stage(program.parser(), program.main)


@pytest.fixture
def flags(model: Path, tmp_path: Path) -> list[str]:
    return f"--model {model} --short-context-length 4 --k 2 --out {tmp_path}/x.html".split()


def test_what_is_printed(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The text's end, which the model has positions for; colours for terminals alone; nothing hostile."""
    caplog.set_level("INFO")
    run(monkeypatch, *flags, "--text", TEXT)
    said = capsys.readouterr().out
    shown = said.partition("\n")[0].replace("[", "").replace("]", "")
    assert TEXT.rstrip().endswith(shown.rstrip()) and len(shown) > 30
    assert f"All {64 - S - 2} targets" in said and "\x1b" not in said
    assert "of which the last 64 are measured, the positions the model was made for" in caplog.text
    run(monkeypatch, *flags, "--text", HOSTILE)
    said = capsys.readouterr().out
    assert not set(said) & set("\x1b\x07\x9b\u202e\u2066")
    assert r"x1b31m alert \x07 \x9b31m turned \u202e round" in said.replace("[", "").replace("]", "")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    run(monkeypatch, *flags, "--text", TEXT)
    assert "\x1b[48;5;" in capsys.readouterr().out


def test_a_model_that_gains_nothing_is_told_so_in_plain_words(model: Path) -> None:
    found = explain(TEXT, str(model), short_context_length=S, k=KS, num_targets=3)
    for changed, sentences in (
        ({"short_context_loss": 1.0, "loss_difference": -0.25}, (
            "the model gains nothing from the far context; with it the loss is 0.250 nats higher on average",
            "of what it changes in the predictions.",
        )),
        ({"loss_difference": 0.0, "short_context_divergence": 0.0}, (
            "The prediction does not change with the far context, so leave_one_out_divergence has nothing to",
        )),
    ):  # fmt: skip
        losses = found.tables["loss_differences"].assign(**changed)
        said = str(replace(found, tables={**found.tables, "loss_differences": losses}))
        assert all(sentence in said for sentence in sentences)
        assert "nan" not in said and "expected" not in said and "No target gains 0.1 nats" in said


def test_a_foreign_text_may_cost_more_than_the_far_context_gains(model: Path) -> None:
    found = explain(TEXT, str(model), short_context_length=S, k=KS, num_targets=3)
    losses = found.tables["loss_differences"]
    for specific_gain, sentence in ((0.943, "costs 0.372 nats"), (0.5, "gains 0.071 nats")):
        changed = losses.assign(loss_difference=0.571, specific_gain=specific_gain)
        said = str(replace(found, tables={**found.tables, "loss_differences": changed}))
        assert "the far context gains 0.571 nats on average (expected" in said
        assert f"a foreign text in its place {sentence}.\n" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--text", "  \n "], "the text of --text is empty"),
        (["--text", "a b"], "fewer than two short contexts of 4"),
        (["--text-file", "{folder}/latin"], "no text in UTF-8: 'utf-8' codec can't decode byte 0xef"),
        (["--text", TEXT, "--tokenizer", "bpe:300"], "would be trained anew"),
        (["--text", "half of one: \udcff and more of it"], "its character 13 is half of one"),
        (["--text", TEXT, "--targets", "600"], "--targets 600 is more than the 58 tokens that have 2 far"),
        (["--text", TEXT, "--k", "90"], "leave the last one 59 far tokens beside a short context of 4"),
        (["--text", TEXT, "--foreign-text-file", "{folder}/short"], "the foreign text has 1 tokens, and 64"),
        (["--text-file", "{folder}/short", "--out", "{folder}/short"], "is an input, which the output would"),
        (
            [
                "--text",
                TEXT,
                "--foreign-text-file",
                "{folder}/short",
                "--out",
                "{folder}/../{folder.name}/short",
            ],
            "is an input, which the output would",
        ),
        (["--text", TEXT, "--out", "{model}/config.json"], "is an input, which the output would"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    words: list[str], sentence: str, flags: list[str], tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("texts")
    (folder / "latin").write_bytes("naïve".encode("latin-1"))
    (folder / "short").write_text("at")
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, *flags, *(word.format(folder=folder, model=flags[1]) for word in words))
    said = capsys.readouterr()
    assert stopped.value.code == 2 and said.out == ""
    assert sentence in said.err and said.err.startswith("explain.py: error: ")
    assert list(tmp_path.iterdir()) == [] and (folder / "short").read_text() == "at"


def test_an_olmo_takes_the_tokenizer_of_its_data(
    model: Path, tmp_path: Path, make_olmo: Callable[..., OLMo]
) -> None:
    size = 268
    write_checkpoint(tmp_path / "models" / "run", make_olmo(vocab_size=size, embedding_size=size))
    flags = {"short_context_length": S, "k": KS, "num_targets": 3}
    with pytest.raises(InputError, match="brings no tokenizer.json; name the one"):
        explain(TEXT, str(tmp_path / "models/run"), **flags)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    found = explain(TEXT, str(tmp_path / "models/run"), **flags).frame
    named = explain(TEXT, str(tmp_path / "models/run"), tokenizer=str(tmp_path / "data"), **flags).frame
    pd.testing.assert_frame_equal(found, named)
    with pytest.raises(InputError, match="another tokenizer than that of run"):
        explain(TEXT, str(tmp_path / "models/run"), tokenizer=str(model), **flags)
