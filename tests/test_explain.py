"""One text explained: the numbers against the stock model, what is printed, and what is refused."""

import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hugging_face_families import make_model
from huggingface_hub import HfApi, constants
from measured_documents import write_checkpoint
from olmo.model import OLMo
from transformers import AutoModelForCausalLM, PreTrainedModel

from pipeline import explain as program
from pipeline.cli import InputError, run_stage
from pipeline.explain import explain
from pipeline.measuring import explanation
from pipeline.measuring import explanation as terminal
from pipeline.measuring.rules import Asked, measured_part
from pipeline.models import load as hub
from pipeline.text.tokenizer import tokenized_text, train_bpe

TEXT = "The cat sat on a mat, and the cat that sat there saw a naïve 👩‍👩‍👧 in the مرحبا e\u0301. "
S, KS = 4, (1, 2)
HOSTILE = "red \x1b[31m alert \x07 \x9b31m turned \u202e round \u2066 and back again, again and again"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-NeoX of 64 positions with a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = train_bpe([TEXT * 4, HOSTILE], 270)
    make_model("gpt_neox", vocab_size=tokenizer.vocabulary_size).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.to_json())
    return folder


@pytest.fixture(scope="module")
def stock(model: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(model).float().eval()


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


def test_every_number_is_that_of_the_stock_model(model: Path, stock: PreTrainedModel) -> None:
    foreign = "a dog ran over the hill and a cow saw the dog, the hill and the sun. " * 3
    frame = explain(TEXT, str(model), short_context_length=S, ks=KS, foreign_text=foreign, num_targets=6)
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
        moved = [
            _divergence(long, log_probs(stock, np.delete(ids[:t], i), np.delete(seen, i)))
            for i in range(t - S)
        ]
        order = np.argsort(-np.array(moved))
        kept = np.sort([*order[:2], *seen[-S:]])
        sparse = log_probs(stock, ids[kept], kept)
        assert row.token_id == ids[t]
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


def test_the_frame_names_the_bytes_of_each_token(model: Path) -> None:
    frame = explain(TEXT, str(model), short_context_length=S, ks=KS)
    content = TEXT.encode()
    assert len(frame) == 64 - S - max(KS)
    for row in frame.itertuples():
        of_bytes = content[row.byte_start : row.byte_end].decode()
        # Beside the token's own text may stand characters of which it holds some bytes.
        assert row.token in of_bytes and len(of_bytes) - len(row.token) <= 2, row.token
    assert list(frame["position"]) == sorted(frame["position"])
    assert frame["null_sparse_context_losses"].isna().all()


def test_rules_that_fit_the_answer_come_with_their_null(model: Path) -> None:
    frame = explain(
        TEXT, str(model), short_context_length=S, ks=KS, num_targets=2, rules=["greedy", "attention"]
    )
    of_rule = frame.set_index("rule")["null_sparse_context_losses"]
    assert all(len(losses) == len(KS) for losses in of_rule["greedy"])
    assert of_rule["attention"].isna().all()


@pytest.mark.parametrize(
    ("rules", "within"), [(["leave_one_out"], 0), (["leave_one_out", "gradient", "add_one_in"], 0.02)]
)
def test_the_work_is_counted_right_before_it_is_done(
    rules: list[str], within: float, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several rules, which share the sets that all of them choose, but for those."""
    planned, done = [], []
    plan, watch = explanation.planned_work, explanation.WatchedLM

    def watched(lm: object, tell: Callable[[object], None]) -> object:
        def both(work: object) -> None:
            done.append(work)
            tell(work)

        return watch(lm, both)

    def planned_work(*arguments: object) -> object:
        work = plan(*arguments)
        planned.append(work)
        done.clear()
        return work

    monkeypatch.setattr(explanation, "WatchedLM", watched)
    monkeypatch.setattr(explanation, "planned_work", planned_work)
    explain(TEXT, str(model), short_context_length=S, ks=KS, rules=rules)
    ((work,), total) = planned, sum(done, start=explanation.Work())
    assert work.num_tokens == pytest.approx(total.num_tokens, rel=within)
    assert work.num_projections == pytest.approx(total.num_projections, rel=within)


@pytest.mark.parametrize(
    ("num_tokens", "asked", "first", "first_target", "num_targets", "ks"),
    [
        (40, {}, 0, 20, 20, (1, 4)),
        (32, {}, 0, 20, 12, (1, 4)),
        (3000, {"num_targets": 5}, 952, 2043, 5, (1, 4)),
        (3000, {"long_context_length": 100}, 2900, 20, 80, (1, 4)),
        (20, {"short_context_length": 10, "long_context_length": 14}, 6, 11, 3, (1,)),
    ],
)
def test_which_tokens_are_measured(
    num_tokens: int, asked: dict, first: int, first_target: int, num_targets: int, ks: tuple[int, ...]
) -> None:
    part = measured_part(Asked(model="m", **asked), num_tokens, 2048)
    assert (part.first_token, part.lengths.first_target, part.lengths.targets_per_chunk, part.ks) == (
        first, first_target, num_targets, ks,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("num_tokens", "asked", "sentence"),
    [
        (31, {}, "has 31 tokens, fewer than two short contexts of 16: .*--short-context-length 15 or less"),
        (0, {}, "has 0 tokens"),
        (40, {"num_targets": 21}, "--targets 21 is more than the 20 tokens that have 4 far"),
        (40, {"ks": (30,)}, "leave the last one 23 far tokens .* --k asks for 30"),
        (40, {"long_context_length": 10}, "leave the last one 0 far tokens"),
    ],
)
def test_texts_and_lengths_that_leave_no_target(num_tokens: int, asked: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        measured_part(Asked(model="m", **asked), num_tokens, None)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["explain.py", *words])
    run_stage(program.parser(), program.main)


@pytest.fixture
def flags(model: Path, tmp_path: Path) -> list[str]:
    return [
        "--model",
        str(model),
        "--short-context-length",
        "4",
        "--k",
        "2",
        "--out",
        str(tmp_path / "x.html"),
    ]


def test_nothing_hostile_reaches_the_terminal(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, *flags, "--text", HOSTILE, "--color", "never")
    said = capsys.readouterr().out
    assert not set(said) & set("\x1b\x07\x9b\u202e\u2066")
    assert r"x1b31m alert \x07 \x9b31m turned \u202e round" in said.replace("[", "").replace("]", "")


def test_colours_are_for_terminals_alone(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for color, is_coloured in (("auto", False), ("always", True)):
        run(monkeypatch, *flags, "--text", TEXT, "--color", color)
        assert ("\x1b[48;5;" in capsys.readouterr().out) == is_coloured


def test_the_text_stands_in_what_is_printed(model: Path) -> None:
    asked = Asked(model=str(model), short_context_length=S, ks=KS, minimum_gain=0.0)
    told = terminal.told(explanation.explained(TEXT, asked), is_coloured=False)
    shown = told.partition("\n")[0].replace("[", "").replace("]", "")
    assert TEXT.rstrip().endswith(shown.rstrip()) and len(shown) > 30
    assert f"All {64 - S - max(KS)} targets" in told


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--text", "  \n "], "the text of --text is empty"),
        (["--text", "a b"], "fewer than two short contexts of 4"),
        (["--text", "x" * 50, "--text-file", "README.md"], "are both given"),
        (["--text", TEXT, "--rules", "leave_one_uot"], "did you mean 'leave_one_out'"),
        (["--text", TEXT, "--rules", "learned_attention"], "such as leave_one_out"),
        (["--text", TEXT, "--tokenizer", "bpe:300"], "would be trained anew"),
        (["--text", TEXT, "--long-context-length", "65", "--device", "no"], "--device no cannot be used"),
        (["--text", "half of one: \udcff and more of it"], "its character 13 is half of one"),
        (["--text", TEXT, "--targets", "600"], "--targets 600 is more than"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    words: list[str],
    sentence: str,
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, *flags, *words)
    said = capsys.readouterr()
    assert stopped.value.code == 2 and said.out == ""
    assert sentence in said.err and said.err.startswith("explain.py: error: ")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_utf8(flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "latin").write_bytes("naïve".encode("latin-1"))
    arguments = program.parser().parse_args([*flags, "--text-file", str(tmp_path / "latin")])
    with pytest.raises(InputError, match="no text in UTF-8: byte 2 is 0xef"):
        program.main(arguments)


def test_a_longer_text_than_the_positions_says_what_is_measured(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run(monkeypatch, *flags, "--text", TEXT * 3, "--targets", "2")
    assert "of which the last 64 are measured, the positions the model was made for" in caplog.text


def test_an_olmo_takes_the_tokenizer_of_its_data(
    model: Path, tmp_path: Path, make_olmo: Callable[..., OLMo]
) -> None:
    size = int(tokenized_text(TEXT, model / "tokenizer.json").token_ids_N.max()) + 1
    write_checkpoint(tmp_path / "models" / "run", make_olmo(vocab_size=size, embedding_size=size))
    flags = {"short_context_length": S, "ks": KS, "num_targets": 3}
    with pytest.raises(InputError, match="brings no tokenizer.json; name the one"):
        explain(TEXT, str(tmp_path / "models/run"), **flags)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    found = explain(TEXT, str(tmp_path / "models/run"), **flags)
    given = explain(TEXT, str(tmp_path / "models/run"), tokenizer=str(model), **flags)
    pd.testing.assert_frame_equal(found, given)


def test_no_network_is_a_sentence_at_once(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = program.parser().parse_args([*flags, "--model", "owner/x", "--text", TEXT])
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setattr(program, "_HUB_PATIENCE_SECONDS", 0.2)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(hub, "HfApi", partial(HfApi, f"http://127.0.0.1:{mute.getsockname()[1]}"))
        with pytest.raises(InputError, match=r"cannot be reached \(no answer within 0.2 seconds\)"):
            program.main(arguments)
