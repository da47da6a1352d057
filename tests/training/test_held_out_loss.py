from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.text.folder import EvaluationDocument, TokenizedData
from pipeline.training.config import load_config
from pipeline.training.trainer import HeldOutLoss, Trainer, held_out_loss_of

MakeTrainer = Callable[..., Trainer]
TINY = Path(__file__).parents[2] / "olmo_configs" / "tiny.yaml"
VOCABULARY = 11


def documents(*lengths: int) -> list[EvaluationDocument]:
    generator = np.random.default_rng(0)
    return [
        EvaluationDocument(str(index), generator.integers(0, VOCABULARY, size=length).astype(np.int32))
        for index, length in enumerate(lengths)
    ]


def logits_at(token_ids_WS: torch.Tensor, position_ids_1S: torch.Tensor) -> torch.Tensor:
    """A causal model of random weights: what it says depends on all tokens so far and on their positions."""
    table_VV = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1))
    return (table_VV[token_ids_WS] * (1 + position_ids_1S[..., None])).cumsum(1)


def naive_mean_loss(texts: list[np.ndarray], context_length: int) -> float:
    """One target at a time: every token but the first of each sequence, given those before it in there."""
    losses = []
    for text in texts:
        for start in range(0, len(text), context_length):
            for target in range(start + 1, start + context_length):
                seen = torch.tensor(text[start:target].astype(np.int64))[None]
                log_probs = logits_at(seen, torch.arange(len(seen[0]))[None])[0, -1].log_softmax(-1)
                losses.append(-float(log_probs[int(text[target])]))
    return float(np.mean(losses))


@pytest.mark.parametrize("tokens_per_batch", [1, 20, 1000])
def test_the_mean_is_that_of_one_target_at_a_time(tokens_per_batch: int) -> None:
    texts = documents(30, 11, 12, 40, 24)  # the second is too short, the fifth one too many
    measured = HeldOutLoss(texts, [4, 12], 3, tokens_per_batch)(logits_at, torch.device("cpu"))
    chosen = [texts[index].token_ids[:12] for index in (0, 2, 3)]
    assert measured == {
        f"held_out_loss_nats_at_{length}": pytest.approx(naive_mean_loss(chosen, length), rel=1e-5)
        for length in (4, 12)
    }


def test_documents_too_short_are_said_and_the_run_goes_on(
    data: TokenizedData, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(TokenizedData, "evaluation_documents", lambda self: documents(255, 3))
    config = load_config(TINY, [], data)
    with caplog.at_level("INFO", logger="pipeline"):
        assert held_out_loss_of(config, data) is None
    assert "no evaluation document has 256 tokens" in caplog.text
    monkeypatch.setattr(TokenizedData, "evaluation_documents", lambda self: documents(256, 3))
    assert held_out_loss_of(config, data) is not None
    assert held_out_loss_of(load_config(TINY, ["eval_context_lengths=null"], data), data) is None


def test_it_is_logged_when_due_and_leaves_the_training_as_it_is(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    monitor = HeldOutLoss(documents(32, 40), [8, 32], 2, 64)
    dropout = ("model.residual_dropout=0.2", "eval_interval=4")
    folders = [
        make_trainer(tmp_path / name, *dropout, held_out_loss=held_out_loss).run()
        for name, held_out_loss in (("watched", monitor), ("alone", None))
    ]
    weights = [torch.load(folder / "model.pt", weights_only=True) for folder in folders]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    lines = [
        line.split('"held_out_loss_nats_at_32"') for line in (tmp_path / "watched" / "metrics.jsonl").open()
    ]
    assert [len(parts) == 2 for parts in lines] == [False, False, False, True, False, True]


def test_dropout_is_off_and_position_ids_are_contiguous(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    monitor = HeldOutLoss(documents(32), [32], 1, 64)
    trainer = make_trainer(
        tmp_path, "model.residual_dropout=0.5", "position_scheme=pose", "pose_target_length=32",
        held_out_loss=monitor,
    )  # fmt: skip
    trainer._train_step(1)
    first, second = trainer._measure(), trainer._measure()
    assert first == second
    assert trainer._model.training
