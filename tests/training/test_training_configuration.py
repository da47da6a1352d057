"""What a configuration may say, and how long and fast a run is by it."""

from pathlib import Path

import pytest
from olmo.config import TrainConfig
from omegaconf import OmegaConf

from sparsity_length.cli import InputError
from sparsity_length.text.folder import TokenizedData
from sparsity_length.training.config import PretrainConfig, load_config

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
    with pytest.raises(InputError) as error:
        load_config(TINY, override.split(), data)
    assert word in str(error.value)


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
