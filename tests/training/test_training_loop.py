"""Training: configuration, batches, position IDs, losses, checkpoints, resuming to the same weights."""

import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from measured_documents import DOCUMENTS, flip, write_data
from olmo.config import TrainConfig
from olmo.model import OLMo
from omegaconf import OmegaConf
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from sparsity_length.cli import InputError
from sparsity_length.models.olmo import blocks_of
from sparsity_length.text.folder import TokenizedData
from sparsity_length.training.config import PretrainConfig, load_config
from sparsity_length.training.data import TrainingBatches
from sparsity_length.training.loop import has_finished, last_metrics, newest_state, save_checkpoint, train
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
    """Two files of 600 and 200 tokens."""
    files = [np.random.default_rng(number).integers(0, 40, number) for number in (600, 200)]
    return TokenizedData.open(write_data(tmp_path_factory.mktemp("data"), files))


@pytest.fixture
def make_trainer(data: TokenizedData) -> Callable[..., Trainer]:
    """A function making a Trainer of the tiny run: make_trainer(save_folder, *overrides)."""

    def make(save_folder: Path, *overrides: str) -> Trainer:
        return Trainer(
            load_config(TINY, [*TINY_OVERRIDES, *overrides, f"save_folder={save_folder}"], data), data
        )

    return make


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "model.pt", weights_only=True)


def trained(trainer: Trainer, *steps: int) -> list[float]:
    """Loss and norm of the gradient of training steps."""
    told = [trainer._train_step(step)[0] for step in steps]
    return [of_step[name] for of_step in told for name in ("loss_nats", "gradient_norm")]


# A token at least; four, so that sequences are cut; all.
@pytest.mark.parametrize("logits_at_once", [1, 4 * 50, 2**20])
def test_the_loss_of_pieces_is_that_of_the_whole_in_float32(
    logits_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_BSV = torch.randn(3, 7, 50, generator=generator).requires_grad_()
    token_ids_BS = torch.randint(50, (3, 7), generator=generator)
    expected = cross_entropy(logits_BSV[:, :-1].flatten(0, 1), token_ids_BS[:, 1:].flatten())
    expected_gradient = torch.autograd.grad(expected, logits_BSV)
    monkeypatch.setattr("sparsity_length.training.trainer._LOGITS_AT_ONCE", logits_at_once)
    loss = next_token_loss(logits_BSV, token_ids_BS) / 18
    found = (loss, *torch.autograd.grad(loss, logits_BSV))
    torch.testing.assert_close(found, (expected, *expected_gradient), rtol=1e-6, atol=1e-8)
    coarse = logits_BSV.detach().bfloat16()
    assert next_token_loss(coarse, token_ids_BS) == next_token_loss(coarse.float(), token_ids_BS)


def test_accumulated_micro_batches_are_one_batch(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    single, whole = (
        trained(make_trainer(tmp_path, f"device_train_microbatch_tokens={size}"), 1, 2, 3) for size in (8, 32)
    )
    assert single == pytest.approx(whole, rel=1e-5)


def test_position_ids_and_seed_reach_the_model(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    to_itself = ("position_scheme=pose", "pose_target_length=8")
    plain, same, pose, other = (
        trained(make_trainer(tmp_path, *words), 1) for words in ((), to_itself, POSE, ("seed=1",))
    )
    assert plain == same and plain not in (pose, other)


@pytest.mark.parametrize(
    "positions",
    [
        [],
        ["model.rope=false", "model.alibi=true", "model.alibi_bias_max=8"],
        ["model.rope=false", "model.alibi=true", "model.alibi_bias_max=.inf"],
    ],
    ids=["rope", "alibi", "nope"],
)
def test_olmo_loads_the_checkpoint_to_equal_logits(
    positions: list[str], make_trainer: MakeTrainer, data: TokenizedData, tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path, "max_duration=3", "save_interval=3", *positions)
    folder = trainer.run()
    token_ids_BS = torch.arange(16).reshape(2, 8)
    trainer._model.eval()
    trainer._rotary.set_position_ids(torch.arange(8)[None])
    with torch.inference_mode():
        stock = OLMo.from_checkpoint(folder)(token_ids_BS).logits
        assert torch.equal(trainer._model(token_ids_BS).logits, stock)
    begun = make_trainer(tmp_path / "begun", *positions, f"load_path={folder}")
    assert begun.step == 0
    torch.testing.assert_close(begun._olmo.state_dict(), weights(folder), rtol=0, atol=0)
    with pytest.raises(InputError, match="does not fit the configuration's model"):
        make_trainer(tmp_path / "wider", *positions, "model.d_model=32", f"load_path={folder}")
    # Another tokenizer's, though of as many rows.
    begun._config.model.vocab_size += 1
    with pytest.raises(InputError, match="trained with another tokenizer"):
        Trainer(begun._config, data)


def test_a_resumed_run_ends_at_the_same_weights(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    keeping = "save_num_unsharded_checkpoints_to_keep=2"
    whole = make_trainer(tmp_path / "whole", DROPOUT, *POSE, keeping).run()
    assert sorted(path.name for path in whole.parent.glob("step*")) == ["step4-unsharded", "step6-unsharded"]
    resumed = shutil.copytree(whole.parent, tmp_path / "resumed", ignore=shutil.ignore_patterns(whole.name))
    torch.manual_seed(99)
    trainer = make_trainer(resumed, DROPOUT, *POSE, keeping)
    assert trainer.step == 4
    torch.testing.assert_close(weights(trainer.run()), weights(whole), rtol=0, atol=0)
    one, other = (
        pd.read_json(run / "metrics.jsonl", lines=True, precise_float=True) for run in (resumed, whole.parent)
    )
    assert one.drop(columns="tokens_per_second").equals(other.drop(columns="tokens_per_second"))


def test_a_loss_that_is_not_a_number_stops_the_run(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, "optimizer.learning_rate=1e30", "save_interval=1")
    with pytest.raises(InputError, match="step 2: loss nan nats"):
        trainer.run()
    assert [path.name for path in tmp_path.glob("step*")] == ["step1-unsharded"]


def test_checkpointed_activations_are_computed_again_to_the_same_numbers(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    checkpointed = make_trainer(tmp_path, "activation_checkpointing=whole_layer")
    is_called = mock.Mock(return_value=None)
    blocks_of(checkpointed._olmo)[0].register_forward_pre_hook(is_called)
    assert trained(checkpointed, 1, 2) == trained(make_trainer(tmp_path), 1, 2)
    assert is_called.call_count == 8  # two steps of two micro-batches, each forward and again in backward


@torch.no_grad()
# Of 16 tokens, six sequences of 4 are a batch of four and one of two.
@pytest.mark.parametrize("microbatch_tokens", [8, 16])
def test_the_held_out_loss_is_that_of_one_target_at_a_time(
    make_trainer: MakeTrainer, tmp_path: Path, microbatch_tokens: int
) -> None:
    """Of every token but the first of each sequence, given those before it in there."""
    words = (f"device_train_microbatch_tokens={microbatch_tokens}", DROPOUT, "model.init_std=0.3", *POSE)
    trainer = make_trainer(tmp_path, "eval_context_lengths=[4,12]", "eval_num_documents=2", *words)
    stock = OLMo(trainer._config.model).eval()
    stock.load_state_dict(trainer._olmo.state_dict())
    held_out_DL = torch.tensor(np.stack([tokens[:12] for tokens in [*DOCUMENTS.values()][:2]])).long()
    expected = {}
    for length in (4, 12):
        losses = [
            float(cross_entropy(stock(sequence_L[None, :target]).logits[0, -1], sequence_L[target]))
            for sequence_L in held_out_DL.reshape(-1, length)
            for target in range(1, length)
        ]
        expected[f"held_out_loss_nats_at_{length}"] = np.mean(losses)
    assert trainer._measure() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "variables",
    [{"WORLD_SIZE": "2", "LOCAL_RANK": "0"}, {"LOCAL_RANK": "0"}, {"OMPI_COMM_WORLD_SIZE": "4"}],
    ids=str,
)
def test_a_run_of_several_has_an_address(variables: dict[str, str], tmp_path: Path) -> None:
    with (
        mock.patch.dict(os.environ, variables),
        pytest.raises(InputError, match=f"^{next(iter(variables))} "),
    ):
        train(tmp_path, lambda: pytest.fail("it began"))


@pytest.fixture(scope="session")
def config(data: TokenizedData) -> PretrainConfig:
    return load_config(TINY, [], data)


def save(run: Path, step: int, config: PretrainConfig) -> None:
    save_checkpoint(run, step, config, {"model": {}, "optim": {"step": 1}, "train": {"step": step}})


def test_another_configuration_is_refused_by_what_changed(
    tmp_path: Path, config: PretrainConfig, data: TokenizedData
) -> None:
    assert not has_finished(tmp_path, config, 7)
    save(tmp_path, 7, config)
    record = tmp_path / "step7-unsharded" / "config.yaml"
    renamed = load_config(TINY, ["run_name=another", "eval_interval=7"], data)
    other = load_config(TINY, ["seed=1", "optimizer.eps=0.5"], data)
    for _ in range(2):  # the second time of a run before the field, which had what is its default
        assert has_finished(tmp_path, renamed, 7)
        with pytest.raises(InputError, match="settings: optimizer.eps was 1e-08, now 0.5; seed was 0, now 1"):
            has_finished(tmp_path, other, 7)
        (record.parent / "complete.json").unlink(missing_ok=True)
        record.write_text(
            record.read_text().replace("position_scheme: contiguous\n", "attention_scaling: none\n")
        )


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        ("config.yaml", lambda path: os.truncate(path, 100), "has 100 bytes, not"),
        ("model.pt", lambda path: os.truncate(path, 0), "has 0 bytes, not"),
        ("optim.pt", Path.unlink, "is missing"),
        ("train.pt", flip, "has not the SHA-256 of its manifest"),
    ],
)
def test_damage_is_refused_and_the_one_before_taken_once_it_is_removed(
    name: str, damage: Callable[[Path], Any], sentence: str, tmp_path: Path, config: PretrainConfig
) -> None:
    for step in (7, 8):
        save(tmp_path, step, config)
    damage(tmp_path / "step8-unsharded" / name)
    with pytest.raises(InputError, match=f"{name} {sentence}"):
        newest_state(tmp_path)
    shutil.rmtree(tmp_path / "step8-unsharded")
    assert newest_state(tmp_path)["train"]["step"] == 7


def test_metrics_go_by_their_steps_and_a_cut_line_is_none(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "loss": 9}\n{"step": 4, "loss": 8}\n{"step": 5, "lo')
    assert [last_metrics(tmp_path, step).get("loss") for step in (2, 3, 5)] == [None, 9, 8]


@pytest.mark.parametrize("num_tokens", [1, 2, 64, 300])
def test_in_bfloat16_its_error_is_of_the_size_of_the_fused_kernels(num_tokens: int) -> None:
    """Queries, keys, values have deviation 2, so that attention has something to choose."""
    generator = torch.Generator().manual_seed(num_tokens)
    parts = [(2 * torch.randn(2, 4, num_tokens, 16, generator=generator)).bfloat16() for _ in range(3)]
    kernel = scaled_dot_product_attention

    def with_gradients(attend: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
        """What is gathered, and the derivatives of the sum of its squares."""
        inputs = [part.detach().to(dtype).requires_grad_() for part in parts]
        attended = attend(*inputs, is_causal=True)
        return [attended.detach(), *torch.autograd.grad(attended.float().square().sum(), inputs)]

    exact = with_gradients(kernel, torch.float64)
    fused = with_gradients(kernel, torch.bfloat16)
    ours = with_gradients(partial(short_attention, kernel), torch.bfloat16)
    for of_exact, of_fused, of_ours in zip(exact, fused, ours, strict=True):
        assert of_ours.dtype == torch.bfloat16
        error, its_error = ((of - of_exact).double().norm() for of in (of_ours, of_fused))
        assert error <= 5 * its_error
    # Few products may be rounded alike by both.
    assert num_tokens < 300 or not torch.equal(fused[0], ours[0])


@pytest.fixture
def five(tmp_path: Path) -> TokenizedData:
    """Tokens 0 … 6 in one file and 10 … 14 in another: five sequences of two."""
    return TokenizedData.open(write_data(tmp_path, [range(7), range(10, 15)]))


def batches_of(data: TokenizedData, batch_size: int) -> TrainingBatches:
    return TrainingBatches(
        PretrainConfig(train_context_length=2, global_train_batch_size=batch_size, seed=5), data
    )


def test_sequences_never_cross_files_and_leave_out_their_last_tokens(five: TokenizedData) -> None:
    token_ids_BS, position_ids_BS = batches_of(five, 5).batch(1)
    assert sorted(token_ids_BS.tolist()) == [[0, 1], [2, 3], [4, 5], [10, 11], [12, 13]]
    assert position_ids_BS.tolist() == [[0, 1]] * 5
    with pytest.raises(InputError, match="holds 5 sequences of 2 tokens, but one step takes 6"):
        batches_of(five, 6)


@pytest.mark.parametrize(("batch_size", "num_steps"), [(1, 5), (2, 2)])  # an incomplete batch is left out
def test_each_epoch_takes_every_sequence_once_in_another_order(
    batch_size: int, num_steps: int, five: TokenizedData
) -> None:
    batches = batches_of(five, batch_size)
    assert batches.steps_per_epoch == num_steps
    found = [batches.sequence_indices(step) for step in range(1, 4 * num_steps + 1)]
    orders = [np.random.default_rng([5, 0, epoch]).permutation(5) for epoch in range(4)]
    whole = [order[: num_steps * batch_size] for order in orders]
    assert np.ravel(found).tolist() == np.ravel(whole).tolist()


def test_pose_shifts_the_second_chunk_only() -> None:
    ids_BS = pose_position_ids(2000, 4, 10, np.random.default_rng(3))
    skips_BC = np.diff(ids_BS, axis=1) - 1
    assert (ids_BS[:, 0] == 0).all()
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
    path: Path, data: TokenizedData
) -> None:
    values = OmegaConf.load(path)
    plain = {name: value for name, value in values.items() if name not in PretrainConfig.__annotations__}
    config = TrainConfig.new(**plain)
    assert (config.model.d_model, config.optimizer.betas) == (values.model.d_model, (0.9, 0.95))
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
        ("max_duration=2ep", "is not steps (1000) or tokens"),
        ("max_duration=infT", "is not steps (1000) or tokens"),
        ("eval_context_lengths=[32,100]", "divide the longest"),
        (
            "max_duration=100",
            "scheduler.t_warmup is 100 steps, not shorter than scheduler.t_max or max_duration '100'",
        ),
        ("scheduler.t_max=0", "scheduler.t_warmup is 100 steps"),
        ("scheduler.t_max=1000 max_duration=99", "scheduler.t_warmup is 100 steps"),
        ("seed=-1", "seed is -1"),
        ("train_context_length=1", "train_context_length is 1"),
        ("eval_num_documents=0", "eval_num_documents is 0"),
        ("model.block_type=llama", "only models with sequential blocks"),
    ],
)
def test_bad_settings_are_refused_by_name(override: str, word: str, data: TokenizedData) -> None:
    with pytest.raises(InputError, match=re.escape(word)):
        load_config(TINY, override.split(), data)


@mock.patch.dict(os.environ, {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"})
def test_a_batch_need_only_fit_the_ranks_that_are_launched(data: TokenizedData) -> None:
    """Of 16 sequences one rank cannot take 12 at a time; each of two takes its eight."""
    assert load_config(TINY, ["device_train_microbatch_tokens=3072"], data).num_micro_batches(2) == 1


@pytest.mark.parametrize(
    ("text", "num_steps"), [(1000, 1000), ("1e3", 1000), ("2e6T", 489), ("4096T", 1), ("4097T", 2)]
)
def test_durations_are_steps_or_tokens(text: str, num_steps: int) -> None:
    assert PretrainConfig(global_train_batch_tokens=4096, max_duration=text).num_steps == num_steps


@pytest.mark.parametrize(
    "units", ["scheduler.t_warmup=10", "scheduler.t_warmup=40960 scheduler.units=tokens"]
)
def test_warm_up_and_cosine_of_olmo_in_steps_or_tokens(units: str, data: TokenizedData) -> None:
    config = load_config(
        TINY, ["max_duration=20", "scheduler.alpha_f=0.1", "optimizer.learning_rate=1", *units.split()], data
    )
    rates, norms = np.transpose([config.rates(step) for step in (1, 5, 10, 15, 20)])
    # From a tenth of the rate in equal parts to all of it, half way down the cosine, to alpha_f.
    assert rates == pytest.approx([0.19, 0.55, 1.0, 0.55, 0.1])
    assert (norms == 1).all()
