"""The training loop of language models: losses, steps, stops, and going on to the same weights."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from olmo.model import OLMo
from torch.nn.functional import cross_entropy

from sparsity_length.cli import InputError
from sparsity_length.models.olmo import blocks_of
from sparsity_length.training import trainer as trainer_module
from sparsity_length.training.loop import train
from sparsity_length.training.trainer import Trainer, next_token_loss

MakeTrainer = Callable[..., Trainer]
POSE = ("position_scheme=pose", "pose_target_length=32")
# Dropout draws from the global generator: only a restored random state continues it.
DROPOUT = "model.residual_dropout=0.2"
CPU = torch.device("cpu")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)


def metrics(run_folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def two_losses(trainer: Trainer) -> list[float]:
    return [trainer._train_step(step)[0]["loss_nats"] for step in (1, 2)]


def test_the_loss_of_pieces_is_that_of_the_whole_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_BSV = torch.randn(3, 7, 50, generator=generator).requires_grad_()
    token_ids_BS = torch.randint(50, (3, 7), generator=generator)
    expected = cross_entropy(logits_BSV[:, :-1].flatten(0, 1), token_ids_BS[:, 1:].flatten())
    (expected_gradient,) = torch.autograd.grad(expected, logits_BSV)
    for logits_at_once in (1, 4 * 50, 2**20):  # a token at least; four, so that sequences are cut; all
        monkeypatch.setattr(trainer_module, "_LOGITS_AT_ONCE", logits_at_once)
        loss = next_token_loss(logits_BSV, token_ids_BS) / 18
        (gradient,) = torch.autograd.grad(loss, logits_BSV)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-6), logits_at_once
        assert torch.allclose(gradient, expected_gradient, atol=1e-8), logits_at_once
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
    begun = make_trainer(tmp_path / "begun", f"load_path={folder}")
    assert begun.step == 0 and same(begun._olmo.state_dict(), weights(folder))


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


def test_checkpointed_activations_are_computed_again_to_the_same_losses(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    checkpointed = make_trainer(tmp_path, "activation_checkpointing=whole_layer")
    calls: list[Any] = []
    blocks_of(checkpointed._olmo)[0].register_forward_pre_hook(lambda *_: calls.append(1))
    assert two_losses(checkpointed) == two_losses(make_trainer(tmp_path))
    assert len(calls) == 2 * 2 * 2  # two steps of two micro-batches, each forward and again in backward


def naive_mean_loss(model: OLMo, texts_DL: torch.Tensor, context_length: int) -> float:
    """One target at a time: every token but the first of each sequence, given those before it in there."""
    losses = []
    for text_L in texts_DL:
        for start in range(0, len(text_L), context_length):
            for target in range(start + 1, start + context_length):
                log_probs = model(text_L[None, start:target]).logits[0, -1].log_softmax(-1)
                losses.append(-float(log_probs[int(text_L[target])]))
    return float(np.mean(losses))


@torch.no_grad()
def test_the_held_out_loss_is_that_of_one_target_at_a_time(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    texts_DL = torch.randint(40, (3, 12), generator=torch.Generator().manual_seed(0))
    for microbatch_tokens in (8, 32):
        small = f"device_train_microbatch_tokens={microbatch_tokens}"
        trainer = make_trainer(tmp_path, small, *POSE, "model.residual_dropout=0.2", "model.init_std=0.3")
        trainer._config.eval_context_lengths = [4, 12]
        trainer._held_out_DL = texts_DL
        stock = OLMo(trainer._config.model).eval()
        stock.load_state_dict(trainer._olmo.state_dict())
        assert trainer._measure() == {
            f"held_out_loss_nats_at_{length}": pytest.approx(
                naive_mean_loss(stock, texts_DL, length), rel=1e-5
            )
            for length in (4, 12)
        }


@pytest.mark.parametrize(
    "variables",
    ["WORLD_SIZE=2 RANK=0 LOCAL_RANK=0", "WORLD_SIZE=2 RANK=1", "LOCAL_RANK=0", "OMPI_COMM_WORLD_SIZE=4"],
)
def test_a_run_of_several_has_an_address(
    variables: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    with pytest.raises(InputError, match=f"{variables.split('=')[0]} in the environment speaks of"):
        train(tmp_path, lambda: pytest.fail("it began"))
