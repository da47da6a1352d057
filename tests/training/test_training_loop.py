"""The training loop of language models: losses, steps, metrics, stops, and going on to the same weights."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from olmo.model import OLMo
from torch.nn.functional import cross_entropy

from pipeline.cli import InputError
from pipeline.models.load import load_olmo
from pipeline.models.olmo import blocks_of
from pipeline.training import speed
from pipeline.training import trainer as trainer_module
from pipeline.training.checkpoints import refuse_another_run
from pipeline.training.speed import mixed_precision_of
from pipeline.training.trainer import Trainer, held_out_losses, next_token_loss

MakeTrainer = Callable[..., Trainer]
TINY = Path(__file__).parents[2] / "olmo_configs" / "tiny.yaml"
POSE = ("position_scheme=pose", "pose_target_length=32")
# Dropout draws from the global generator: only a restored random state continues it.
DROPOUT = "model.residual_dropout=0.2"
CPU = torch.device("cpu")
VOCABULARY = 11


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)


def metrics(run_folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def two_losses(trainer: Trainer) -> list[float]:
    return [trainer._train_step(step)[0]["loss_nats"] for step in (1, 2)]


@pytest.mark.parametrize("scaling", ["log_length", "learnt"])
def test_scaled_attention_is_trained_goes_on_and_is_measured(
    scaling: str, make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    """Resumed, the weights are the same; the loaded model's loss is what the trainer would measure."""
    wanted = f"attention_scaling={scaling}"
    whole = make_trainer(tmp_path / "whole", wanted)
    whole.run()
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "step6-unsharded")
    resumed = make_trainer(tmp_path / "half", wanted)
    resumed.run()
    folder = resumed.checkpoint
    assert same(weights(folder), weights(whole.checkpoint))
    learnt = [value for name, value in weights(folder).items() if name.endswith("attention_scaling.scale_H")]
    start = 1 / math.log(8)
    assert [bool((value != start).all()) for value in learnt] == ([True] if scaling == "learnt" else [])
    lm = load_olmo(folder, CPU)
    token_ids = torch.arange(8)[None]
    resumed._rotary.set_position_ids(token_ids)
    found = lm.logits(lm.hidden_states(token_ids, token_ids, None, None))
    assert torch.allclose(found, resumed._olmo.eval()(token_ids).logits, atol=1e-5)
    for other in ("none", "log_length", "learnt"):
        if other != scaling:
            with pytest.raises(InputError, match=f"attention_scaling was '{scaling}', now '{other}'"):
                refuse_another_run(tmp_path / "half", replace(resumed._config, attention_scaling=other))


def test_the_loss_of_pieces_is_that_of_the_whole_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_BSV = torch.randn(3, 7, 50, generator=generator).requires_grad_()
    token_ids_BS = torch.randint(50, (3, 7), generator=generator)
    expected = cross_entropy(logits_BSV[:, :-1].flatten(0, 1), token_ids_BS[:, 1:].flatten())
    (expected_gradient,) = torch.autograd.grad(expected, logits_BSV)
    for logits_at_once in (1, 4 * 50, 2**20):  # a token at least; four, so that sequences are cut; all
        monkeypatch.setattr(trainer_module, "_LOGITS_AT_ONCE", logits_at_once)
        loss = next_token_loss(logits_BSV, token_ids_BS)
        (gradient,) = torch.autograd.grad(loss, logits_BSV)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-6), logits_at_once
        assert torch.allclose(gradient, expected_gradient, atol=1e-8), logits_at_once
        total = next_token_loss(logits_BSV, token_ids_BS, reduction="sum")
        assert total.item() == pytest.approx(18 * loss.item()), logits_at_once
    coarse = logits_BSV.detach().bfloat16()
    assert next_token_loss(coarse, token_ids_BS) == next_token_loss(coarse.float(), token_ids_BS)


def test_accumulated_micro_batches_are_one_batch(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    make_trainer(tmp_path / "whole", "device_train_microbatch_tokens=32").run()
    make_trainer(tmp_path / "single", "device_train_microbatch_tokens=8").run()
    for whole, single in zip(metrics(tmp_path / "whole"), metrics(tmp_path / "single"), strict=True):
        assert single == pytest.approx(whole, rel=1e-5)


def test_position_ids_reach_the_model(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    contiguous, pose, to_itself = (
        make_trainer(tmp_path, *overrides)._train_step(1)[0]["loss_nats"]
        for overrides in ((), POSE, ("position_scheme=pose", "pose_target_length=8"))
    )
    assert pose != contiguous == to_itself


def test_olmo_loads_the_checkpoint_to_equal_logits(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    folder = trainer.run()
    token_ids_BS = torch.arange(16).reshape(2, 8)
    trainer._model.eval()
    trainer._rotary.set_position_ids(torch.arange(8)[None])
    with torch.inference_mode():
        ours = trainer._model(token_ids_BS).logits
        stock = OLMo.from_checkpoint(folder)(token_ids_BS).logits
    assert folder == tmp_path / "step6-unsharded"
    assert torch.equal(ours, stock)


def test_a_resumed_run_ends_at_the_same_weights_and_another_seed_does_not(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    keeping = "save_num_unsharded_checkpoints_to_keep=2"
    whole = make_trainer(tmp_path / "whole", DROPOUT, *POSE, keeping).run()
    other = make_trainer(tmp_path / "other", DROPOUT, *POSE, "seed=1").run()
    assert sorted(path.name for path in whole.parent.glob("step*")) == ["step4-unsharded", whole.name]
    shutil.copytree(whole.parent, tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / whole.name)
    torch.manual_seed(99)
    trainer = make_trainer(tmp_path / "resumed", DROPOUT, *POSE, keeping)
    assert trainer.step == 4
    assert same(weights(trainer.run()), weights(whole))
    assert not same(weights(other), weights(whole))
    assert metrics(tmp_path / "resumed") == metrics(tmp_path / "whole")


def test_a_run_begins_with_the_weights_of_another_and_at_another_length(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    first = make_trainer(tmp_path / "first")
    first.run()
    wanted = f"load_path={tmp_path / 'first'}", "train_context_length=4", "seed=5"
    second = make_trainer(tmp_path / "second", *wanted)
    assert second.step == 0 and same(second._olmo.state_dict(), first._olmo.state_dict())
    second.run()
    trained = weights(second.checkpoint)
    assert not same(trained, weights(first.checkpoint))
    assert same(make_trainer(tmp_path / "second", *wanted)._olmo.state_dict(), trained)  # it goes on
    with pytest.raises(RuntimeError, match="scale_H"):
        make_trainer(tmp_path / "third", *wanted, "attention_scaling=learnt")


def test_a_loss_that_is_not_a_number_stops_the_run(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    forward = trainer._model.forward

    def fail_at_step_4(*arguments: Any, **named: Any) -> Any:
        output = forward(*arguments, **named)
        return output._replace(logits=output.logits * math.nan) if trainer.step == 3 else output

    trainer._model.forward = fail_at_step_4  # type: ignore[method-assign]
    with pytest.raises(InputError, match="step 4: loss nan nats"):
        trainer.run()
    assert [path.name for path in tmp_path.glob("step*")] == ["step2-unsharded"]
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "step2-unsharded").values())


def test_auto_takes_bfloat16_where_it_is_faster_and_slow_bfloat16_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cases = (
        ("auto", 4, "bf16"),
        ("auto", 0.2, "no"),
        ("amp_bf16", 0.2, "bf16"),
        ("fp32", 4, "no"),
        (None, 4, "no"),
    )
    for precision, speedup, chosen in cases:
        monkeypatch.setattr(speed, "bfloat16_speedup", lambda _, speedup=speedup: speedup)
        assert mixed_precision_of(precision, CPU) == chosen, (precision, speedup)
    assert caplog.text.count("bfloat16 is 5.0 times slower") == 1


def test_a_run_goes_on_in_its_own_precision_or_is_refused(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_trainer(tmp_path, "save_interval=6").run()  # in float32
    monkeypatch.setattr(speed, "bfloat16_speedup", lambda _: 4.0)
    with pytest.raises(InputError, match="go on with precision=fp32"):
        make_trainer(tmp_path, "precision=amp_bf16")
    assert make_trainer(tmp_path, "precision=auto")._accelerator.mixed_precision == "no"
    assert mixed_precision_of("auto", CPU, saved="bf16") == "bf16"  # whatever is faster on the next machine


def test_metrics_lead_to_the_checkpoint_that_is_gone_on_from(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    interval = "console_log_interval=2"
    make_trainer(tmp_path, interval, "save_interval=6").run()
    path = tmp_path / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 7}\n{"step": 8, "loss_')  # not saved; torn by a kill
    trainer = make_trainer(tmp_path, interval)
    with trainer._open_metrics():
        for step, num_lines in ((7, 6), (8, 8)):  # flushed every second step
            trainer._write({"step": step, "loss_nats": 1.5, "tokens_per_second": 10.0})
            assert len(metrics(tmp_path)) == num_lines
    path.write_text("")
    with pytest.raises(InputError, match="metrics.jsonl does not hold the 6 steps"):
        make_trainer(tmp_path).run()


def test_checkpointed_activations_are_computed_again_to_the_same_losses(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    checkpointed = make_trainer(tmp_path, "activation_checkpointing=whole_layer")
    calls: list[Any] = []
    blocks_of(checkpointed._olmo)[0].register_forward_pre_hook(lambda *_: calls.append(1))
    assert two_losses(checkpointed) == two_losses(make_trainer(tmp_path))
    assert len(calls) == 2 * 2 * 2  # two steps of two micro-batches, each forward and again in backward


@pytest.mark.slow
def test_compiled_blocks_give_the_same_losses_and_names(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    compiled = make_trainer(tmp_path, "compile.backend=aot_eager")
    plain = make_trainer(tmp_path)
    assert two_losses(compiled) == pytest.approx(two_losses(plain), rel=1e-6)
    assert compiled._olmo.state_dict().keys() == plain._olmo.state_dict().keys()


def logits_at(token_ids_WS: torch.Tensor, position_ids_1S: torch.Tensor) -> torch.Tensor:
    """A causal model of random weights: what it says depends on all tokens so far and on their positions."""
    table_VV = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1))
    return (table_VV[token_ids_WS] * (1 + position_ids_1S[..., None])).cumsum(1)


def naive_mean_loss(texts_DL: torch.Tensor, context_length: int) -> float:
    """One target at a time: every token but the first of each sequence, given those before it in there."""
    losses = []
    for text_L in texts_DL:
        for start in range(0, len(text_L), context_length):
            for target in range(start + 1, start + context_length):
                seen = text_L[None, start:target]
                log_probs = logits_at(seen, torch.arange(seen.shape[1])[None])[0, -1].log_softmax(-1)
                losses.append(-float(log_probs[int(text_L[target])]))
    return float(np.mean(losses))


def test_the_held_out_loss_is_that_of_one_target_at_a_time() -> None:
    texts_DL = torch.randint(VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(0))
    expected = {
        f"held_out_loss_nats_at_{length}": pytest.approx(naive_mean_loss(texts_DL, length), rel=1e-5)
        for length in (4, 12)
    }
    for tokens_per_batch in (1, 20, 1000):
        assert held_out_losses(texts_DL, [4, 12], tokens_per_batch, logits_at) == expected


def test_the_held_out_loss_is_logged_when_due_without_dropout_and_leaves_the_training_as_it_is(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    alone = make_trainer(tmp_path / "alone", DROPOUT, *POSE).run()
    asked = "eval_interval=4", "eval_context_lengths=[8,32]"
    texts_DL = torch.arange(64).reshape(2, 32) % 40
    watched = make_trainer(tmp_path / "watched", DROPOUT, *POSE, *asked, held_out_DL=texts_DL)
    assert same(weights(watched.run()), weights(alone))
    is_measured = ["held_out_loss_nats_at_32" in line for line in metrics(tmp_path / "watched")]
    assert is_measured == [False, False, False, True, False, True]
    assert watched._measure() == watched._measure()
    assert watched._model.training
