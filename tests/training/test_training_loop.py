import errno
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.training import checkpoints
from pipeline.training import speed as precision
from pipeline.training import trainer as next_token
from pipeline.training.parallel import seed_stream
from pipeline.training.speed import mixed_precision_of
from pipeline.training.trainer import Trainer, next_token_loss

MakeTrainer = Callable[..., Trainer]
POSE = ("position_scheme=pose", "pose_target_length=32")
# Dropout draws from the global generator: only a restored random state continues it.
DROPOUT = "model.residual_dropout=0.2"
CPU = torch.device("cpu")
ASKING = [0, 2, 4, 6]  # a fifth of the pairs


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)


def metrics(run_folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    timed = ("tokens_per_second", "model_flops_utilization")
    return [{name: value for name, value in line.items() if name not in timed} for line in lines]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_the_loss_is_of_predicting_the_next_token() -> None:
    token_ids_BS = torch.tensor([[2, 0, 1]])
    logits_BSV = torch.zeros(1, 3, 4)
    assert next_token_loss(logits_BSV, token_ids_BS).item() == pytest.approx(math.log(4))
    logits_BSV[0, 0, 0] = logits_BSV[0, 1, 1] = (
        100.0  # certain of token 0 after the first, of 1 after the second
    )
    assert next_token_loss(logits_BSV, token_ids_BS).item() == 0.0
    logits_BSV[0, 2] = torch.tensor([9.0, -9.0, 5.0, 0.0])  # after the last token nothing is predicted
    assert next_token_loss(logits_BSV, token_ids_BS).item() == 0.0


def test_the_loss_may_be_of_the_tokens_behind_some_only() -> None:
    token_ids_BS = torch.tensor([[3, 0, 3, 1], [2, 1, 0, 3]])  # behind a 3: 0 and 1, and nothing
    logits_BSV = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    log_probs = logits_BSV.log_softmax(-1)
    asked = next_token_loss(logits_BSV, token_ids_BS, behind=torch.tensor([3]))
    assert asked.item() == pytest.approx(-(log_probs[0, 0, 0] + log_probs[0, 2, 1]).item() / 2)
    (gradient,) = torch.autograd.grad(asked, logits_BSV)
    assert gradient.abs().sum(-1).nonzero().tolist() == [[0, 0], [0, 2]]
    none = next_token_loss(logits_BSV, token_ids_BS, behind=torch.tensor([4]))
    assert none.item() == 0.0


def test_answers_have_the_weight_that_is_asked_for(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    def first_step(name: str, *overrides: str) -> tuple[dict[str, float], torch.Tensor]:
        # One micro-batch, as the mean of means is not the mean
        whole = "device_train_microbatch_tokens=32"
        trainer = make_trainer(tmp_path / name, whole, *overrides, question_ids=ASKING)
        token_ids_BS, position_ids_BS = map(torch.from_numpy, trainer._batch_of(1))
        trainer._rotary.set_position_ids(position_ids_BS)
        logits_BSV = trainer._model(token_ids_BS).logits
        line = trainer._train_step(1)[0]
        return line, next_token_loss(logits_BSV, token_ids_BS, behind=torch.tensor(ASKING))

    alike, _ = first_step("alike")
    weighted, expected = first_step("weighted", "answer_loss_weight=2")
    assert "answer_loss_nats" not in alike
    assert weighted["answer_loss_nats"] > 0
    assert weighted["answer_loss_nats"] == pytest.approx(expected.item(), rel=1e-5)
    assert weighted["loss_nats"] == alike["loss_nats"]  # of all tokens, alike
    assert weighted["gradient_norm"] > alike["gradient_norm"] + 0.01


def test_answers_of_more_weight_are_learnt_first(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    weighted = make_trainer(
        tmp_path / "weighted", "max_duration=20", "answer_loss_weight=10", question_ids=[4]
    )
    weighted.run()
    last = metrics(tmp_path / "weighted")[-1]
    assert last["answer_loss_nats"] < last["loss_nats"] - 2


def test_the_loss_is_computed_in_float32() -> None:
    logits_BSV = torch.randn(2, 5, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    token_ids_BS = torch.zeros(2, 5, dtype=torch.int64)
    loss = next_token_loss(logits_BSV, token_ids_BS)
    assert loss.dtype == torch.float32
    assert loss == next_token_loss(logits_BSV.float(), token_ids_BS)


def test_the_loss_of_pieces_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_BSV = torch.randn(3, 7, 50, generator=generator).requires_grad_()
    token_ids_BS = torch.randint(50, (3, 7), generator=generator)
    expected = torch.nn.functional.cross_entropy(
        logits_BSV[:, :-1].flatten(0, 1), token_ids_BS[:, 1:].flatten()
    )
    (expected_gradient,) = torch.autograd.grad(expected, logits_BSV)
    for logits_at_once in (
        1,
        4 * 50,
        2**20,
    ):  # a token at once at least; four, so that sequences are cut; all
        monkeypatch.setattr(next_token, "_LOGITS_AT_ONCE", logits_at_once)
        loss = next_token_loss(logits_BSV, token_ids_BS)
        (gradient,) = torch.autograd.grad(loss, logits_BSV)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
        assert torch.allclose(gradient, expected_gradient, atol=1e-8)
        total = next_token_loss(logits_BSV, token_ids_BS, reduction="sum")
        assert total.item() == pytest.approx(18 * loss.item())


def test_training_learns_what_the_data_repeats(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    make_trainer(tmp_path, "max_duration=60").run()
    losses = [line["loss_nats"] for line in metrics(tmp_path)]
    assert losses[0] == pytest.approx(math.log(128), abs=0.1)  # uniform over the padded vocabulary
    assert losses[-1] < losses[0] - 1


def test_accumulated_micro_batches_are_one_batch(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    make_trainer(tmp_path / "whole", "device_train_microbatch_tokens=32").run()
    make_trainer(tmp_path / "single", "device_train_microbatch_tokens=8").run()
    for whole, single in zip(metrics(tmp_path / "whole"), metrics(tmp_path / "single"), strict=True):
        assert single == pytest.approx(whole, rel=1e-5)


def test_the_first_step_moves_weights_by_the_scheduled_rate(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(
        tmp_path, "optimizer.weight_decay=0", "optimizer.eps=1e-30", "scheduler.t_warmup=2"
    )
    before = {name: weight.detach().clone() for name, weight in trainer._model.named_parameters()}
    step_metrics, _ = trainer._train_step(1)
    # Adam's first step is the gradient's sign times the rate, which warms up from 0.001 to 0.01 in two steps.
    assert step_metrics["learning_rate"] == pytest.approx(0.0055)
    largest = max(
        (weight - before[name]).abs().max().item() for name, weight in trainer._model.named_parameters()
    )
    assert largest == pytest.approx(0.0055, rel=1e-3)


def test_position_ids_reach_the_model(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    contiguous, _ = make_trainer(tmp_path / "contiguous")._train_step(1)
    pose, _ = make_trainer(tmp_path / "pose", *POSE)._train_step(1)
    itself = make_trainer(tmp_path / "itself", "position_scheme=pose", "pose_target_length=8")
    to_itself, _ = itself._train_step(1)
    assert pose["loss_nats"] != contiguous["loss_nats"]
    assert to_itself["loss_nats"] == contiguous["loss_nats"]


def test_olmo_loads_the_checkpoint_to_equal_logits(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    folder = trainer.run()
    token_ids_BS = torch.arange(16).reshape(2, 8)
    trainer._model.eval()
    trainer._rotary.set_position_ids(torch.arange(8)[None])
    with torch.inference_mode():
        ours, stock = trainer._model(token_ids_BS).logits, OLMo.from_checkpoint(folder)(token_ids_BS).logits
    assert folder == tmp_path / "step6-unsharded"
    assert torch.equal(ours, stock)


@pytest.mark.parametrize("last_step", [2, 4])
def test_a_resumed_run_ends_at_the_same_weights(
    make_trainer: MakeTrainer, tmp_path: Path, last_step: int
) -> None:
    whole = make_trainer(tmp_path / "whole", DROPOUT, *POSE).run()
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for step in range(last_step + 2, 7, 2):
        shutil.rmtree(tmp_path / "resumed" / f"step{step}-unsharded")
    torch.manual_seed(99)
    trainer = make_trainer(tmp_path / "resumed", DROPOUT, *POSE)
    assert trainer.step == last_step
    assert same(weights(trainer.run()), weights(whole))
    assert metrics(tmp_path / "resumed") == metrics(tmp_path / "whole")


def test_seeds_differ(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    first, again, other = (
        weights(make_trainer(tmp_path / name, f"seed={seed}").run())
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    )
    assert same(first, again)
    assert not same(first, other)


def test_the_seed_decides_the_initial_weights(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    first, again, other = (make_trainer(tmp_path, f"seed={seed}")._model.state_dict() for seed in (1, 1, 2))
    assert same(first, again)
    assert not same(first, other)


def test_only_the_newest_checkpoints_are_kept_where_asked(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    make_trainer(tmp_path, "save_num_unsharded_checkpoints_to_keep=2").run()
    assert sorted(path.name for path in tmp_path.glob("step*")) == ["step4-unsharded", "step6-unsharded"]


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


def test_a_full_disk_leaves_the_checkpoint_before_it(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = checkpoints._save

    def fail_at_step_4(content: dict[str, Any], path: Path) -> None:
        if "step4" in str(path.parent) and path.name == "optim.pt":
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(content, path)

    with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
        full.setattr(checkpoints, "_save", fail_at_step_4)
        make_trainer(tmp_path / "full").run()
    assert [path.name for path in (tmp_path / "full").glob("*step*")] == ["step2-unsharded"]
    resumed = make_trainer(tmp_path / "full")
    assert resumed.step == 2
    assert same(weights(resumed.run()), weights(make_trainer(tmp_path / "whole").run()))


@pytest.mark.parametrize(
    ("asked", "speedup", "given"),
    [("auto", 4.0, "bf16"), ("auto", 0.2, "no"), ("amp_bf16", 0.2, "bf16"), ("fp32", 4.0, "no"),
     (None, 4.0, "no")],
)  # fmt: skip
def test_auto_takes_bfloat16_where_it_is_faster(
    asked: str | None, speedup: float, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda _: speedup)
    assert mixed_precision_of(asked, CPU) == given


def test_slow_bfloat16_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda _: 0.2)
    mixed_precision_of("amp_bf16", CPU)
    assert (
        "bfloat16 is 5.0 times slower than float32 on this cpu; precision=fp32 is recommended" in caplog.text
    )


def test_a_run_goes_on_in_its_own_precision_or_is_refused(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_trainer(tmp_path, "save_interval=6").run()  # in float32
    monkeypatch.setattr(precision, "bfloat16_speedup", lambda _: 4.0)
    sentence = "precision is amp_bf16, but the checkpoint was trained in float32; go on with precision=fp32"
    with pytest.raises(InputError, match=sentence):
        make_trainer(tmp_path, "precision=amp_bf16")
    assert make_trainer(tmp_path, "precision=auto")._accelerator.mixed_precision == "no"
    assert mixed_precision_of("auto", CPU, saved="bf16") == "bf16"  # whatever is faster on the next machine
    with pytest.raises(InputError, match="was trained in bfloat16; go on with precision=amp_bf16"):
        mixed_precision_of("fp32", CPU, saved="bf16")


def test_a_run_goes_back_to_the_checkpoint_before_a_damaged_one(
    make_trainer: MakeTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = weights(make_trainer(tmp_path).run())
    (tmp_path / "step6-unsharded" / "optim.pt").write_bytes(b"")
    (tmp_path / "step8-unsharded").mkdir()
    trainer = make_trainer(tmp_path)
    assert trainer.step == 4
    assert f"{tmp_path / 'step6-unsharded'}: optim.pt is empty; going on from step 4" in caplog.text
    assert f"{tmp_path / 'step8-unsharded'}: it has no config.yaml" in caplog.text
    assert same(weights(trainer.run()), whole)


@pytest.mark.parametrize("stem", ["model", "optim", "train"])
def test_a_checkpoint_of_something_else_is_refused(
    make_trainer: MakeTrainer, tmp_path: Path, stem: str
) -> None:
    folder = make_trainer(tmp_path, "save_interval=6").run()
    (folder / "complete.json").unlink()  # as an earlier version left it: no hash tells
    torch.save({"something": 3}, folder / f"{stem}.pt")
    with pytest.raises(InputError, match="does not hold the state of this run") as error:
        make_trainer(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"", "lacks some of the 6 steps"), (b"\xff\x00", "is damaged"), (b"[1]\n", "is damaged"),
     (b'{"step": 1}\n{"step": 3}\n', "lacks some of the 6 steps")],
)  # fmt: skip
def test_metrics_that_do_not_lead_to_the_checkpoint_are_refused(
    make_trainer: MakeTrainer, tmp_path: Path, content: bytes, sentence: str
) -> None:
    make_trainer(tmp_path).run()
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=f"metrics.jsonl {sentence}"):
        make_trainer(tmp_path).run()


def test_a_checkpoint_of_other_ranks_is_gone_on_from_with_a_word(
    make_trainer: MakeTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_trainer(tmp_path, DROPOUT, "save_interval=6").run() / "train.pt"
    saved = torch.load(path, weights_only=True)
    torch.save(saved | {"random_states": saved["random_states"] * 2}, path)
    (path.parent / "complete.json").unlink()
    make_trainer(tmp_path)  # without dropout nothing is drawn
    assert "dropout" not in caplog.text
    make_trainer(tmp_path, DROPOUT)
    assert "drawn by 2 ranks on a cpu, and is drawn from here on by 1 on a cpu" in caplog.text


def test_each_rank_and_each_start_has_its_own_stream() -> None:
    drawn = []
    for rank, step in ((0, 0), (1, 0), (0, 3), (0, 0)):
        seed_stream(7, rank, step)
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[3]
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
