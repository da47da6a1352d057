"""What `study.py --dry-run` prints: every command with what it takes, or what one configuration needs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.studies.command import Command, Training
from pipeline.studies.cost import Cost, in_words
from pipeline.studies.forecast import Forecast
from pipeline.studies.machine import Machine
from pipeline.training.estimates import estimate
from pipeline.training.given_settings import AssumedData, load_config


def lines_of_plan(
    commands: Sequence[Command],
    to_run: Sequence[Command],
    forecast: Forecast,
    machine: Machine,
) -> Iterator[str]:
    """Comments with estimates, a command after each; a shell could run them.

    Args:
        commands: of the study.
        to_run: those that have not finished.
        forecast: of the study.
        machine: where it would run.
    """
    total = Cost()
    for command in commands:
        cost = forecast.cost_of(command, machine)
        is_finished = command.writes and command not in to_run
        total += Cost() if is_finished else cost
        words = [in_words(cost), "finished before" if is_finished else ""]
        if isinstance(command.about, Training):
            need = forecast.need_of(command.about)
            words.insert(
                0, f"{need.num_parameters / 1e6:,.1f} M parameters, {need.memory_bytes / 1e9:,.1f} GB"
            )
            if need.text_passes is not None and need.text_passes > 1:
                words.append(f"reads the text {need.text_passes:,.1f} times")
        yield f"# {command.name}: {', '.join(filter(None, words))}"
        yield str(command)
    yield f"# in all, of what has not finished: {in_words(total)}; at {machine}"


def need_of_run(path: Path, overrides: Sequence[str], vocabulary_size: int, machine: Machine) -> str:
    """What a training configuration needs, in one line: the words at the head of olmo_configs/*.yaml.

    Raises:
        InputError: it is not valid, or its duration cannot be told without data.
    """
    config = load_config(path, overrides, AssumedData(vocabulary_size))
    run = estimate(config, machine.device_in(config.precision))
    return (
        f"{run.num_parameters / 1e6:,.1f} M parameters, Chinchilla-optimal at"
        f" {run.chinchilla_tokens / 1e6:,.0f} M tokens; {run.num_tokens / 1e6:,.0f} M tokens in"
        f" {run.num_steps:,} steps take {run.memory_bytes / 1e9:,.1f} GB and {run.seconds / 3600:,.2f} hours"
    )
