"""From what the user wrote (a YAML file, overrides, tokenized data) to a checked PretrainConfig."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pipeline.errors import InputError, omegaconf_sentence, unknown_name
from pipeline.training.configuration import PretrainConfig, refuse_ignored_fields
from pipeline.training.value_checks import refuse_bad_numbers

_EMBEDDING_MULTIPLE = 128  # OLMo pads its embedding to a multiple of this: faster matrix products
_BATCH_FIELDS = {
    "global_train_batch_tokens": "global_train_batch_size",
    "device_train_microbatch_tokens": "device_train_microbatch_size",
}


class DataFacts(Protocol):
    """What a configuration takes from tokenized data: the fields of that name of `TokenizedData`."""

    @property
    def vocabulary_size(self) -> int:
        """Tokens of the tokenizer."""

    @property
    def eos_token_id(self) -> int:
        """The token that ends a document."""

    @property
    def train_sha256(self) -> str:
        """SHA-256 of the training tokens, in hex."""

    @property
    def num_train_tokens(self) -> int | None:
        """EOS included; None where they are not known yet."""


@dataclass(frozen=True)
class AssumedData:
    """Stands for data that is not there yet, to plan with."""

    vocabulary_size: int
    eos_token_id: int = 0
    train_sha256: str = "unknown"
    num_train_tokens: int | None = None


def load_config(path: Path, overrides: Sequence[str], data: DataFacts) -> PretrainConfig:
    """The configuration of one run, complete and checked.

    Args:
        path: a YAML file of PretrainConfig's, or plain OLMo TrainConfig's, fields.
        overrides: `field.subfield=value`, as in OLMo's scripts; they win over the file.
        data: `TokenizedData`, whose tokenizer decides vocab_size, embedding_size, eos_token_id and
            pad_token_id of the model; a setting that says otherwise is refused.

    Raises:
        InputError: one sentence naming the field and what would be right.
    """
    try:
        given = _read_given(path, overrides)
        refuse_unknown_fields(given, _schema())
        refuse_ignored_fields(given)
        _take_from_data(given, data)
        config = OmegaConf.to_object(merge_given(path, _schema(), given))
        assert isinstance(config, PretrainConfig)
        refuse_bad_numbers(config)
        _derive_sequences(config, given)
    except OmegaConfBaseException as error:
        raise InputError(f"{path}: {omegaconf_sentence(error)}") from error
    config.validate()
    _refuse_impossible_model(config)
    return config


@cache
def _schema() -> DictConfig:
    """All fields with their types and defaults, built once: a study loads a dozen configurations."""
    return OmegaConf.structured(PretrainConfig)


def _refuse_impossible_model(config: PretrainConfig) -> None:
    """Let OLMo itself look at the model, without its weights: what it would refuse later is refused here."""
    from olmo.exceptions import OLMoConfigurationError

    from pipeline.training.throughput import model_without_weights

    try:
        model_without_weights(config.model)
    except (OLMoConfigurationError, AssertionError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or ["OLMo's own check fails"])[0]
        raise InputError(f"model: OLMo refuses this combination of settings ({reason})") from error


def _read_given(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """What the file and the overrides say, merged, interpolations resolved."""
    chosen = read_overrides(overrides)
    _register_resolvers()
    merged = merge_given(path, PretrainConfig.update_legacy_settings(read_yaml(path)), chosen)
    given = OmegaConf.to_container(merged, resolve=True)
    assert isinstance(given, dict)
    return cast(dict[str, Any], given)


def read_overrides(overrides: Sequence[str]) -> DictConfig:
    """What `field.subfield=value` words of a command line say.

    Raises:
        InputError: names the word that says nothing.
    """
    for override in overrides:
        if "=" not in override:
            raise InputError(f"override '{override}' has no '='; write it as field=value, such as seed=1")
        try:
            OmegaConf.from_dotlist([override])
        except (YAMLError, OmegaConfBaseException) as error:
            raise InputError(
                f"override '{override}' is not readable: behind '=' stands a value as YAML has it, such as"
                " seed=1 or betas=[0.9,0.95]"
            ) from error
    return OmegaConf.from_dotlist(list(overrides))


def merge_given(path: Path, *parts: Any) -> DictConfig:
    """Fields of a configuration, the later parts winning.

    Raises:
        InputError: a value is of another kind than its field; names `path`, where most of them stand.
    """
    try:
        return cast(DictConfig, OmegaConf.merge(*parts))
    except (OmegaConfBaseException, TypeError) as error:  # a TypeError where a list meets fields
        field = _unmergeable_field(parts)
        raise InputError(f"{path}: {field}{omegaconf_sentence(error)}") from error


def _unmergeable_field(parts: Sequence[Any]) -> str:
    """The field that cannot be merged, which OmegaConf's message may not name."""
    for part in parts[1:]:
        for name, value in cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(part))).items():
            try:
                OmegaConf.merge(parts[0], {name: value})
            except (OmegaConfBaseException, TypeError):
                return f"{name}: "
    return ""


def read_yaml(path: Path) -> DictConfig:
    """What a configuration file says.

    Raises:
        InputError: there is none, or it does not hold fields.
    """
    try:
        file = OmegaConf.load(path)
    except FileNotFoundError as error:
        raise InputError(f"no configuration file {path}") from error
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"{path} is not a readable YAML file: {error}") from error
    if not isinstance(file, DictConfig):
        raise InputError(f"{path} does not hold the fields of a training configuration")
    return file


def _register_resolvers() -> None:
    """Let a file use OLMo's `path.*` interpolations."""
    with (
        warnings.catch_warnings()
    ):  # ai2-olmo 0.6 registers them in a way that OmegaConf 2.4 calls deprecated
        warnings.simplefilter("ignore", UserWarning)
        PretrainConfig._register_resolvers(validate_paths=False)


def refuse_unknown_fields(given: Mapping[str, Any], schema: DictConfig, prefix: str = "") -> None:
    """Raise for the first field, at any depth, that the configuration does not have."""
    known_names = [str(name) for name in schema]
    for name, value in given.items():
        if name not in known_names:
            valid = [f"{prefix}{known}" for known in known_names]
            raise unknown_name("configuration field", f"{prefix}{name}", valid)
        if isinstance(value, Mapping) and isinstance(schema[name], DictConfig) and len(schema[name]):
            refuse_unknown_fields(value, schema[name], f"{prefix}{name}.")


def _take_from_data(given: dict[str, Any], data: DataFacts) -> None:
    """Fill in what the tokenized data decides; refuse a setting that says otherwise."""
    model = given["model"] = dict(given.get("model") or {})
    padded_size = -(-data.vocabulary_size // _EMBEDDING_MULTIPLE) * _EMBEDDING_MULTIPLE
    decided = [
        (given, "train_data_sha256", data.train_sha256),
        (model, "vocab_size", data.vocabulary_size),
        (model, "embedding_size", padded_size),
        (model, "eos_token_id", data.eos_token_id),
        (model, "pad_token_id", data.eos_token_id),  # sequences are full: no token is ever padding
    ]
    for settings, name, value in decided:
        if settings.get(name) not in (None, value):
            field = name if settings is given else f"model.{name}"
            raise InputError(
                f"{field} is {settings[name]}, but the tokenized data says {value}; leave it out"
            )
        settings[name] = value


def _derive_sequences(config: PretrainConfig, given: Mapping[str, Any]) -> None:
    """Turn batch sizes in tokens into OLMo's, in sequences of this run's length."""
    for tokens_field, sequences_field in _BATCH_FIELDS.items():
        tokens, length = getattr(config, tokens_field), config.sequence_length
        if tokens is None:
            continue
        if tokens < length or tokens % length:
            raise InputError(
                f"{tokens_field} {tokens} is not a multiple of the train_context_length, {length} tokens"
            )
        if given.get(sequences_field) not in (None, tokens // length):
            raise InputError(
                f"{tokens_field} {tokens} makes {tokens // length} sequences, but {sequences_field} is"
                f" {given[sequences_field]}; give one of the two"
            )
        setattr(config, sequences_field, tokens // length)
