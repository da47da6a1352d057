from dataclasses import replace
from pathlib import Path

import pytest
from olmo.config import TrainConfig
from omegaconf import OmegaConf

from pipeline.cli import InputError
from pipeline.text.folder import TokenizedData
from pipeline.training.config import OUR_FIELDS, RANGES, PretrainConfig, load_config, plain_values

CONFIGS = Path(__file__).parents[2] / "olmo_configs"
TINY = CONFIGS / "tiny.yaml"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_without_our_fields_is_a_train_config_of_olmo(path: Path, tmp_path: Path) -> None:
    values = OmegaConf.load(path)
    plain = {name: value for name, value in values.items() if name not in OUR_FIELDS}
    assert len(plain) < len(values)
    OmegaConf.save(OmegaConf.create(plain), tmp_path / "plain.yaml")
    config = TrainConfig.load(tmp_path / "plain.yaml")
    assert config.model.d_model == values.model.d_model
    assert config.optimizer.betas == (0.9, 0.95)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_is_accepted(path: Path, data: TokenizedData) -> None:
    assert load_config(path, [], data).tokens_per_step == OmegaConf.load(path).global_train_batch_tokens


@pytest.mark.parametrize(("train_context_length", "num_sequences"), [(256, 16), (32, 128), (64, 64)])
def test_a_step_has_the_same_tokens_at_any_context(
    train_context_length: int, num_sequences: int, data: TokenizedData
) -> None:
    config = load_config(TINY, [f"train_context_length={train_context_length}"], data)
    assert config.global_train_batch_size == num_sequences
    assert config.device_train_microbatch_size == num_sequences
    assert config.tokens_per_step == 4096


def test_the_data_decides_the_vocabulary(data: TokenizedData) -> None:
    config = load_config(TINY, [], replace(data, vocabulary_size=50_280, eos_token_id=7))
    model = config.model
    assert (model.vocab_size, model.embedding_size) == (50_280, 50_304)
    assert (model.eos_token_id, model.pad_token_id) == (7, 7)
    assert config.train_data_sha256 == "0" * 64
    assert load_config(TINY, ["model.vocab_size=40"], data).model.vocab_size == 40


def test_a_plain_olmo_config_loads_too(data: TokenizedData, tmp_path: Path) -> None:
    path = tmp_path / "olmo.yaml"
    path.write_text(
        "run_name: plain\nseed: 3\nwandb: null\n"
        "model: {d_model: 64, n_heads: 4, rope: true, max_sequence_length: 16}\n"
        "global_train_batch_size: 8\ndevice_train_microbatch_size: 4\nprecision: amp_bf16\nfsdp: null\n"
    )
    config = load_config(path, ["optimizer.learning_rate=3e-3"], data)
    assert (config.sequence_length, config.tokens_per_step) == (16, 128)
    assert config.micro_batch_size(num_ranks=1) == 4
    assert config.micro_batch_size(num_ranks=4) == 2
    assert config.optimizer.learning_rate == 3e-3


def test_a_saved_configuration_loads_as_itself(data: TokenizedData, tmp_path: Path) -> None:
    overrides = ["train_context_length=32", "position_scheme=pose", "pose_target_length=256"]
    config = load_config(TINY, overrides, data)
    config.save(tmp_path / "config.yaml")
    assert plain_values(load_config(tmp_path / "config.yaml", [], data)) == plain_values(config)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("optimizer.lerning_rate=1", "'optimizer.lerning_rate'; did you mean 'optimizer.learning_rate'?"),
        ("sed=1", "unknown configuration field 'sed'; did you mean 'seed'?"),
        ("seed", "override 'seed' has no '='"),
        ("seed=x", "could not be converted to Integer (seed)"),
        ("seed=-1", "seed is -1; it must be at least 0"),
        ("time_limit=3", "'time_limit' is a field of OLMo's trainer that pretrain does not act on"),
        ("wandb.project=x", "'wandb' is a field"),
        ("seed=18446744073709551616", "seed is 18446744073709551616; it must be at least 0 and at most"),
        ("train_context_length=0", "train_context_length is 0; it must be at least 2"),
        ("train_context_length=1", "train_context_length is 1; it must be at least 2"),
        ("max_grad_norm=-1", "max_grad_norm is -1.0; it must be above 0"),
        ("model.d_model=0", "model.d_model is 0; it must be at least 1"),
        ("model.d_model=12", "gives each of model.n_heads 4 an odd width"),
        ("model.mlp_ratio=0", "model.mlp_ratio is 0; it must be at least 1"),
        ("model.mlp_hidden_size=7", "model: OLMo refuses this combination of settings"),
        ("model.n_kv_heads=3", "model.n_heads 4 is not divisible by model.n_kv_heads 3"),
        ("model.n_layers=0", "model.n_layers is 0"),
        ("model.alibi=true", "model.alibi is true; ALiBi cannot be beside RoPE"),
        ("model.residual_dropout=5", "model.residual_dropout is 5.0; it must be at least 0 and below 1"),
        ("model.attention_dropout=nan", "model.attention_dropout is nan"),
        ("optimizer.weight_decay=-0.1", "optimizer.weight_decay is -0.1; it must be at least 0"),
        ("optimizer.weight_decay=nan", "optimizer.weight_decay is nan"),
        (
            "optimizer.learning_rate=nan",
            "optimizer.learning_rate is nan; it must be above 0 and at most 1000",
        ),
        ("optimizer.learning_rate=inf", "optimizer.learning_rate is inf"),
        ("optimizer.betas=[0.9,1.0]", "optimizer.betas is 1.0; it must be at least 0 and below 1"),
        ("optimizer.eps=-1", "optimizer.eps is -1"),
        ("scheduler.alpha_f=-1", "scheduler.alpha_f is -1"),
        ("train_context_length=512", "at most model.max_sequence_length, 256"),
        ("train_context_length=48", "4096 is not a multiple of the train_context_length, 48"),
        ("global_train_batch_size=8", "makes 16 sequences, but global_train_batch_size is 8"),
        ("device_train_microbatch_tokens=3072", "16 sequences of a rank are not divisible"),
        ("position_scheme=posse", "did you mean 'pose'?"),
        ("position_scheme=pose", "needs pose_target_length"),
        ("pose_target_length=512", "would ignore it"),
        ("randomized_target_length=512", "would ignore it"),
        ("position_scheme=randomized", "needs randomized_target_length"),
        ("eval_context_lengths=[32,100]", "eval_context_lengths has 32; each must divide the longest"),
        ("eval_interval=0", "eval_interval is 0"),
        ("peak_flops=0", "peak_flops is 0.0; it must be above 0"),
        ("trackers=[tensorbord]", "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        ("precision=amp_bf61", "did you mean 'amp_bf16'?"),
        ("model.vocab_size=41", "model.vocab_size is 41, but the tokenized data says 40"),
        ("train_data_sha256=abc", "train_data_sha256 is abc"),
        ("model.rope=false", "model.rope is false"),
        ("model.n_heads=3", "model.d_model 128 is not divisible by model.n_heads 3"),
        ("optimizer.learning_rate=0", "optimizer.learning_rate is 0"),
        ("save_interval=0", "save_interval is 0"),
    ],
)
def test_bad_settings_are_refused_by_name(override: str, sentence: str, data: TokenizedData) -> None:
    with pytest.raises(InputError) as error:
        load_config(TINY, [override], data)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_vocabulary_that_no_token_can_name_is_refused(data: TokenizedData) -> None:
    with pytest.raises(InputError, match="model.vocab_size is 1000000000000; it must be at least 1 and at"):
        load_config(TINY, [], replace(data, vocabulary_size=10**12))


def test_every_number_of_the_table_is_a_field() -> None:
    schema = OmegaConf.structured(PretrainConfig)
    assert not [name for name in RANGES if OmegaConf.select(schema, name, default="no field") == "no field"]


@pytest.mark.parametrize("scheme", ["pose", "randomized"])
def test_a_position_scheme_must_not_shrink_the_context(scheme: str, data: TokenizedData) -> None:
    with pytest.raises(InputError, match=f"{scheme}_target_length is 128 tokens; it must be at least"):
        load_config(TINY, [f"position_scheme={scheme}", f"{scheme}_target_length=128"], data)


def test_a_batch_that_does_not_divide_over_the_ranks_is_refused(data: TokenizedData) -> None:
    config = load_config(TINY, ["device_train_microbatch_tokens=1024"], data)
    assert config.micro_batch_size(num_ranks=4) == 4
    with pytest.raises(InputError, match="16 .sequences. is not divisible by the 3 ranks"):
        config.micro_batch_size(num_ranks=3)


@pytest.mark.parametrize("text", ["- a list\n", "seed: [\n"])
def test_a_file_that_is_no_configuration_is_refused(text: str, data: TokenizedData, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"broken\.yaml"):
        load_config(path, [], data)
    with pytest.raises(InputError, match="no configuration file"):
        load_config(tmp_path / "absent.yaml", [], data)
