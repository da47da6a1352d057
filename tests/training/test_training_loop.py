"""Training: configuration, batches, position IDs, losses, checkpoints, resuming to the same weights."""

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from measured_documents import flip, write_data
from olmo.config import TrainConfig
from olmo.model import OLMo
from omegaconf import OmegaConf
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from sparsity_length.cli import InputError
from sparsity_length.models.olmo import blocks_of
from sparsity_length.text.folder import TokenizedData
from sparsity_length.training import trainer as trainer_module
from sparsity_length.training.config import PretrainConfig, load_config
from sparsity_length.training.data import TrainingBatches
from sparsity_length.training.loop import has_finished, newest_state, save_checkpoint, train
from sparsity_length.training.positions import (
    contiguous_position_ids,
    pose_position_ids,
    randomized_position_ids,
)
from sparsity_length.training.trainer import Trainer, next_token_loss, short_attention

MakeTrainer = Callable[..., Trainer]
POSE = ("position_scheme=pose", "pose_target_length=32")
# Dropout draws from the global generator: only a restored random state continues it.
DROPOUT = "model.residual_dropout=0.2"
TINY_OVERRIDES = (
    "model.d_model=16",
    "model.n_heads=2",
    "model.n_layers=1",
    "model.max_sequence_length=32",
    "train_context_length=8",
    "global_train_batch_tokens=32",
    "device_train_microbatch_tokens=16",
    "scheduler.t_warmup=2",
    "optimizer.learning_rate=1e-2",
    "precision=fp32",
    "max_duration=6",
    "save_interval=2",
    "eval_context_lengths=null",
)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenizedData:
    """Two files of 600 and 200 tokens in which token 2n is always followed by 2n + 1."""
    generator = np.random.default_rng(0)
    firsts = [2 * generator.integers(0, 20, num_tokens // 2) for num_tokens in (600, 200)]
    files = [np.stack((first, first + 1), axis=1).ravel() for first in firsts]
    return TokenizedData.open(write_data(tmp_path_factory.mktemp("data"), files))


@pytest.fixture
def make_trainer(data: TokenizedData) -> Callable[..., Trainer]:
    """A function making a Trainer of the tiny run: make_trainer(save_folder, *overrides)."""

    def make(save_folder: Path, *overrides: str) -> Trainer:
        config = load_config(TINY, [*TINY_OVERRIDES, *overrides], data)
        config.save_folder = str(save_folder)
        return Trainer(config, data)

    return make


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)


def metrics(run_folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def losses_of(trainer: Trainer, *steps: int) -> list[float]:
    return [trainer._train_step(step)[0]["loss_nats"] for step in steps]


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
        losses_of(make_trainer(tmp_path, *overrides), 1)
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
    assert losses_of(checkpointed, 1, 2) == losses_of(make_trainer(tmp_path), 1, 2)
    assert len(calls) == 2 * 2 * 2  # two steps of two micro-batches, each forward and again in backward


def naive_mean_loss(model: OLMo, texts_DL: torch.Tensor, context_length: int) -> float:
    """One target at a time: every token but the first of each sequence, given those before it in there."""
    losses = []
    for sequence_L in texts_DL.reshape(-1, context_length):
        for target in range(1, context_length):
            log_probs = model(sequence_L[None, :target]).logits[0, -1].log_softmax(-1)
            losses.append(-float(log_probs[sequence_L[target]]))
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


STATE = {"model": {"weight": torch.arange(3)}, "optim": {"step": 1}, "train": {"step": 7}}


@pytest.fixture
def config(data: TokenizedData) -> PretrainConfig:
    return load_config(TINY, [], data)


def test_another_configuration_is_refused_by_what_changed(
    tmp_path: Path, config: PretrainConfig, data: TokenizedData
) -> None:
    assert not has_finished(tmp_path, config, 7)
    save_checkpoint(tmp_path, 7, config, STATE)
    record = tmp_path / "step7-unsharded" / "config.yaml"
    for _ in range(2):  # the second time of a run before the field, which had what is its default
        assert has_finished(tmp_path, load_config(TINY, ["run_name=another", "eval_interval=7"], data), 7)
        with pytest.raises(InputError, match="settings: optimizer.eps was 1e-08, now 0.5; seed was 0, now 1"):
            has_finished(tmp_path, load_config(TINY, ["seed=1", "optimizer.eps=0.5"], data), 7)
        (record.parent / "complete.json").unlink(missing_ok=True)
        before_the_field = record.read_text().replace("eval_num_documents: 64\n", "attention_scaling: none\n")
        record.write_text(before_the_field)


FILES = ("config.yaml", "model.pt", "optim.pt", "train.pt")
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (lambda path: os.truncate(path, 100), "has 100 bytes, not"),
    "empty": (lambda path: os.truncate(path, 0), "has 0 bytes, not"),
    "missing": (Path.unlink, "is missing"),
    "one bit": (flip, "has not the SHA-256 of its manifest"),
}


@pytest.mark.parametrize(("name", "damage"), list(zip(FILES, DAMAGES, strict=True)))
def test_damage_is_refused_and_the_one_before_taken_once_it_is_removed(
    name: str, damage: str, tmp_path: Path, config: PretrainConfig
) -> None:
    for step in (7, 8):
        save_checkpoint(tmp_path, step, config, STATE | {"train": {"step": step}})
    assert newest_state(tmp_path)["train"]["step"] == 8
    do, sentence = DAMAGES[damage]
    do(tmp_path / "step8-unsharded" / name)
    with pytest.raises(InputError, match=f"{name} {sentence}"):
        newest_state(tmp_path)
    shutil.rmtree(tmp_path / "step8-unsharded")
    assert newest_state(tmp_path)["train"]["step"] == 7


def heads(num_tokens: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Queries, keys, values, of deviation 2, so that attention has something to choose."""
    generator = torch.Generator().manual_seed(num_tokens)
    draws = [2 * torch.randn(2, 4, num_tokens, 16, generator=generator) for _ in range(3)]
    return [part.to(dtype).requires_grad_() for part in draws]


def with_gradients(attended: torch.Tensor, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """What was gathered, and the derivatives of a sum of it in which every value counts otherwise."""
    weights = torch.linspace(-1, 1, attended.numel()).view(attended.shape)
    return [attended.detach(), *torch.autograd.grad((weights * attended.float()).sum(), parts)]


def test_in_bfloat16_its_error_is_of_the_size_of_the_fused_kernels() -> None:
    for num_tokens in (1, 2, 64, 300):
        parts = heads(num_tokens, torch.bfloat16)
        exact_parts = [part.detach().double().requires_grad_() for part in parts]
        exact = with_gradients(scaled_dot_product_attention(*exact_parts, is_causal=True), exact_parts)
        fused = with_gradients(scaled_dot_product_attention(*parts, is_causal=True), parts)
        composed = short_attention(scaled_dot_product_attention, *parts, is_causal=True)
        ours = with_gradients(composed, parts)
        for of_exact, of_fused, of_ours in zip(exact, fused, ours, strict=True):
            assert of_ours.dtype == torch.bfloat16 and of_ours.shape == of_exact.shape
            error, its_error = ((of - of_exact).double().norm() for of in (of_ours, of_fused))
            assert error <= 5 * its_error, num_tokens
    assert not torch.equal(fused[0], ours[0])


@pytest.fixture
def five(tmp_path: Path) -> TokenizedData:
    """Tokens 0 … 6 in one file and 10 … 14 in another: five sequences of two."""
    return TokenizedData.open(write_data(tmp_path, [range(7), range(10, 15)]))


def batches_of(data: TokenizedData, batch_size: int) -> TrainingBatches:
    return TrainingBatches(
        PretrainConfig(train_context_length=2, global_train_batch_size=batch_size, seed=0), data
    )


def test_sequences_never_cross_files_and_leave_out_their_last_tokens(five: TokenizedData) -> None:
    token_ids_BS, position_ids_BS = batches_of(five, 5).batch(1)
    assert sorted(token_ids_BS.tolist()) == [[0, 1], [2, 3], [4, 5], [10, 11], [12, 13]]
    assert position_ids_BS.tolist() == [[0, 1]] * 5
    assert (token_ids_BS.dtype, position_ids_BS.dtype) == (np.int64, np.int64)
    with pytest.raises(InputError, match="holds 5 sequences of 2 tokens, but one step takes 6"):
        batches_of(five, 6)


def test_each_epoch_takes_every_sequence_once_in_another_order(five: TokenizedData) -> None:
    batches = batches_of(five, 1)
    assert batches.steps_per_epoch == 5
    epochs = [
        [int(batches.sequence_indices(5 * epoch + step)[0]) for step in range(1, 6)] for epoch in range(8)
    ]
    assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert epochs[3] == np.random.default_rng([0, 0, 3]).permutation(5).tolist()
    of_two = batches_of(five, 2)  # an incomplete batch is left out
    assert of_two.steps_per_epoch == 2
    assert len({*of_two.sequence_indices(1).tolist(), *of_two.sequence_indices(2).tolist()}) == 4


def test_pose_shifts_the_second_chunk_only() -> None:
    ids_BS = pose_position_ids(2000, 4, 10, np.random.default_rng(3))
    skips_BC = np.diff(ids_BS, axis=1) - 1
    assert ids_BS.dtype == np.int64 and (ids_BS[:, 0] == 0).all()
    assert ((skips_BC > 0).sum(axis=1) <= 1).all(), "one cut, which leaves neither chunk empty"
    # The largest skip puts the last token at the last ID, 9; every cut comes with every skip.
    pairs = {(int(skips_C.argmax()), int(skips_C.max())) for skips_C in skips_BC}
    assert pairs == {(0, 0)} | {(cut, skip) for cut in range(3) for skip in range(1, 7)}
    for ids in (contiguous_position_ids, pose_position_ids):
        assert ids(3, 4, 4, np.random.default_rng(3)).tolist() == [[0, 1, 2, 3]] * 3


def test_randomized_ids_are_every_subset_equally_often() -> None:
    ids_BS = randomized_position_ids(12_000, 2, 4, np.random.default_rng(4))
    subsets, counts = np.unique(ids_BS, axis=0, return_counts=True)
    # The six pairs out of 0 … 3, ascending; 2,000 of each expected, with a standard deviation of 41.
    assert subsets.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert np.abs(counts - 2000).max() < 4.5 * 41
    assert ids_BS.dtype == np.int64


CONFIGS = Path(__file__).parents[2] / "olmo_configs"
TINY = CONFIGS / "tiny.yaml"


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path == TINY else pytest.mark.slow)
        for path in sorted(CONFIGS.glob("*.yaml"))
    ],
)
def test_every_config_is_accepted_here_and_without_our_fields_by_olmo(
    path: Path, data: TokenizedData, tmp_path: Path
) -> None:
    values = OmegaConf.load(path)
    plain = {name: value for name, value in values.items() if name not in PretrainConfig.__annotations__}
    assert len(plain) < len(values)
    OmegaConf.save(OmegaConf.create(plain), tmp_path / "plain.yaml")
    config = TrainConfig.load(tmp_path / "plain.yaml")
    assert config.model.d_model == values.model.d_model
    assert config.optimizer.betas == (0.9, 0.95)
    ours = load_config(path, [], data)
    assert ours.global_train_batch_size * ours.sequence_length == values.global_train_batch_tokens


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("optimizer.lerning_rate=1", "lerning_rate"),
        ("seed=[", "seed=["),
        ("seed=x", "seed"),
        ("max_grad_norm=-1", "max_grad_norm"),  # it trained, uphill
        ("optimizer.learning_rate=nan", "learning_rate"),
        ("time_limit=3", "time_limit"),
        ("model.n_heads=3", "twice model.n_heads"),
        ("model.alibi=true", "either model.rope or model.alibi"),
        ("model.rope=false", "with neither, positions are learned"),
        (
            "model.rope=false model.alibi=true position_scheme=pose pose_target_length=512",
            "position_scheme 'pose' needs model.rope",
        ),
        ("train_context_length=512", "model.max_sequence_length, 256"),
        ("train_context_length=48", "4096 is not a multiple"),
        ("global_train_batch_size=512", "act on global_train_batch_size"),
        ("device_train_microbatch_tokens=3072", "not divisible"),
        ("position_scheme=posse", "did you mean 'pose'?"),
        ("pose_target_length=512", "would be ignored"),
        ("position_scheme=pose pose_target_length=128", "at least train_context_length, 256"),
        ("position_scheme=randomized", "randomized_target_length is None"),
        ("max_duration=0", "num_steps is 0"),
        ("eval_context_lengths=[32,100]", "divide the longest"),
        ("max_duration=99", "scheduler.t_warmup is 100 steps, longer than max_duration '99'"),
    ],
)
def test_bad_settings_are_refused_by_name(override: str, word: str, data: TokenizedData) -> None:
    with pytest.raises(InputError, match=re.escape(word)):
        load_config(TINY, override.split(), data)


def test_durations_are_steps_or_tokens() -> None:
    config = PretrainConfig(train_context_length=64, global_train_batch_tokens=4096)
    for text, num_steps in {1000: 1000, "1e3": 1000, "2e6T": 489, "4096T": 1, "4097T": 2}.items():
        config.max_duration = text
        assert config.num_steps == num_steps
    for text in ("long", "2e6X", "", "2ep", "infT"):
        config.max_duration = text
        with pytest.raises(InputError, match="max_duration"):
            _ = config.num_steps


def test_warm_up_and_cosine_of_olmo_in_steps_or_tokens(data: TokenizedData) -> None:
    overrides = ["max_duration=20", "scheduler.alpha_f=0.1", "optimizer.learning_rate=1"]
    for units in (["scheduler.t_warmup=10"], ["scheduler.t_warmup=40960", "scheduler.units=tokens"]):
        config = load_config(TINY, [*overrides, *units], data)
        # From a tenth of the rate in equal parts to all of it, half way down the cosine, to alpha_f.
        rates = [config.rates(step)[0] for step in (1, 5, 10, 15, 20)]
        assert rates == pytest.approx([0.19, 0.55, 1.0, 0.55, 0.1]), units
        assert config.rates(20)[1] == 1.0
