"""What a run folder's run is known by: its settings, beside it from the start and in every checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pipeline.errors import InputError
from pipeline.models.checkpoint_files import step_folders
from pipeline.results.files import write_atomically
from pipeline.training.checkpoints import CONFIG_FILE, METRICS_FILE, RunConfig, checkpoints_of
from pipeline.training.configuration import plain_values

# A run may be moved, renamed, watched, saved and spread over devices otherwise; all else decides its numbers.
_CHANGEABLE = {
    "save_folder", "run_name", "save_interval", "save_num_unsharded_checkpoints_to_keep",
    "console_log_interval", "eval_interval", "eval_context_lengths", "eval_num_documents", "peak_flops",
    "trackers", "device_train_microbatch_size", "device_train_microbatch_tokens", "distributed_strategy",
    "compile", "activation_checkpointing",
    "precision",  # train.pt says in which one the weights were trained; that is compared
}  # fmt: skip
_MOST_TOLD = 8  # changed settings in one sentence


@contextmanager
def recorded_run(run_folder: Path, config: RunConfig) -> Iterator[None]:
    """Write the run's settings, so that even a run without a checkpoint is known by them.

    Where the training inside is refused before its first checkpoint, nothing is worth keeping: the record
    goes, so that the mended command is not refused as another run's.
    """
    write_atomically(run_folder / CONFIG_FILE, config.save)
    try:
        yield
    except InputError:
        if not step_folders(run_folder):
            for name in (CONFIG_FILE, METRICS_FILE):
                (run_folder / name).unlink(missing_ok=True)
        raise


def refuse_another_run(run_folder: Path, config: RunConfig) -> None:
    """Refuse a folder whose run had another configuration, or other data, by the newest record it has.

    Raises:
        InputError: names every field that changed, or a record that cannot be read.
    """
    changes = changed_settings(run_folder, config)
    if changes:
        more = f"; and {len(changes) - _MOST_TOLD} more" if len(changes) > _MOST_TOLD else ""
        raise InputError(
            f"{run_folder} holds a run with other settings: {'; '.join(changes[:_MOST_TOLD])}{more};"
            " choose another --save-folder, or repeat the earlier settings"
        )


def changed_settings(run_folder: Path, config: RunConfig) -> list[str]:
    """One phrase for every setting that decides numbers and differs from the newest record of a run.

    Raises:
        InputError: that record cannot be read.
    """
    folders = [*checkpoints_of(run_folder).values(), run_folder]
    records = [path for folder in folders if (path := folder / CONFIG_FILE).is_file()]
    return _differences(_read_record(records[-1]), plain_values(config)) if records else []


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, ValueError, YAMLError, OmegaConfBaseException):
        record = None
    if not isinstance(record, dict) or not record:
        raise InputError(
            f"{path} is damaged: it does not hold the settings of a run; put back what was there, such as the"
            f" {CONFIG_FILE} of the run's newest checkpoint"
        )
    return cast(dict[str, Any], record)


def _differences(earlier: Any, now: Any, name: str = "") -> list[str]:
    """One phrase for every leaf in which two nested configurations differ."""
    if name in _CHANGEABLE or earlier == now:
        return []
    if isinstance(earlier, dict) and isinstance(now, dict):
        names = sorted(earlier.keys() | now.keys())
        prefix = f"{name}." if name else ""
        return [
            phrase for key in names for phrase in _differences(earlier.get(key), now.get(key), prefix + key)
        ]
    return [f"{name} was {earlier}, now {now}"]
