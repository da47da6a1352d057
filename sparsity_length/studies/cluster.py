"""Before a study is submitted: whether Slurm would take its jobs, and an estimate of GPU hours and disk.

The estimate counts operations: 6 per weight and token in training, 2 in measuring, and those of attention.
Exact leave-one-out runs the tokens behind each distant token once. A GPU is taken to sustain `TRAINING` or
`MEASURING` operations per second; small models do not reach them and take longer. Models that the study does
not train are not counted, nor are results, which are small.
"""

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sparsity_length.measuring.rules import LEAVE_ONE_OUT_RULES
from sparsity_length.measuring.selecting import Selecting
from sparsity_length.measuring.settings import BesideShort, ByLength, Chunked
from sparsity_length.studies.commands import Command
from sparsity_length.studies.run import cpu_options, in_cluster, jobs_of
from sparsity_length.text.tokenizer import load_tokenizer, parse_tokenizer_name
from sparsity_length.text.tokenizing import Tokenizing

TRAINING = 1e14
"""Operations per second: a third of an A100's peak in bfloat16."""
MEASURING = 1e13
"""Operations per second: half of an A100's peak in float32."""
BYTES_PER_WEIGHT = 12
"""Bytes in a checkpoint: a weight and two moments of AdamW, in float32."""
BYTES_PER_TOKEN = 2
"""Bytes in tokenized text."""
COUNTED = ("loss_differences", "influential_tokens", "length_interference")
"""Measuring stages of the estimate; evaluate_tokens costs little beside the search."""


def minutes_of(time: str) -> float:
    """The minutes of a time as Slurm writes it: 30, 30:00, 12:00:00, 1-12 or 1-12:00:00."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", time):
        return math.inf  # infinite, UNLIMITED
    days, _, rest = time.rpartition("-")
    numbers = [int(days or 0), *map(int, rest.split(":"))]
    starts_with_hours = days or len(numbers) == 4
    units = (1440, 60, 1, 1 / 60) if starts_with_hours else (1440, 1, 1 / 60)
    return sum(number * unit for number, unit in zip(numbers, units, strict=False))


def refusals(scripts: Sequence[str]) -> Iterator[str]:
    """Why Slurm would not run jobs of these scripts, a sentence each."""
    if not Path("slurm/cluster.env").exists():
        yield "slurm/cluster.env is missing: cp slurm/cluster.env.example slurm/cluster.env, and edit it"
        return
    limit_of_all = in_cluster("printenv", "SBATCH_TIMELIMIT").stdout.strip()
    for script in scripts:
        tested = in_cluster("sbatch", "--test-only", *cpu_options(script), script)
        if tested.returncode:
            yield f"{script}: sbatch refuses it ({' '.join(tested.stderr.split())})"
            continue
        # Slurm takes a job that asks for more time than its partition allows, and lets it wait for ever.
        partition = re.findall(r"in partition (\S+)", tested.stderr)
        allowed = in_cluster("sinfo", "-h", "-o", "%l", "-p", ",".join(partition)).stdout.split()
        text = Path(script).read_text(encoding="utf-8")
        asked = limit_of_all or re.findall(r"^#SBATCH --time=(\S+)", text, re.MULTILINE)[0]
        if partition and minutes_of(asked) > minutes_of(allowed[0]):
            yield (
                f"{script}: asks for {asked}, and the partition allows {allowed[0]}; export SBATCH_TIMELIMIT"
                " in slurm/cluster.env; jobs then resume where they stopped"
            )


def num_weights(config: Any, tokenizer: str) -> int:
    """Weights of a model that a PretrainConfig describes, with the vocabulary of a --tokenizer."""
    from olmo.model import OLMo  # late: it takes seconds

    found = parse_tokenizer_name(tokenizer)
    vocabulary_size = found if isinstance(found, int) else load_tokenizer(found).vocabulary_size
    rows = math.ceil(vocabulary_size / 128) * 128  # as load_config has them
    sized = config.model.update_with(vocab_size=vocabulary_size, embedding_size=rows, init_device="meta")
    return OLMo(sized, init_params=False).num_params()


def training_operations(config: Any, weights: int) -> float:
    """Operations of a whole training."""
    tokens = config.num_steps * config.global_train_batch_tokens
    # Of attention: two products of d_model numbers with half of the sequence, on average.
    attention = config.model.n_layers * config.model.d_model * config.sequence_length
    return 6.0 * tokens * (weights + attention)


def num_checkpoints(config: Any) -> int:
    """Checkpoints that are kept of a training."""
    written = math.ceil(config.num_steps / (config.save_interval or config.num_steps))
    kept = config.save_num_unsharded_checkpoints_to_keep
    return written if kept < 0 else min(written, max(kept, 1))


def forward_tokens(settings: Chunked, documents: int) -> float:
    """Tokens that a measuring stage runs through each of its models, of a text of so many documents.

    A document counts one chunk if the settings do not limit its chunks.
    """
    chunks = min(settings.max_documents or documents, documents) * (settings.max_chunks_per_document or 1)
    length = settings.long_context_length
    if isinstance(settings, ByLength):
        num_targets = settings.lengths.num_targets
        return chunks * (length + num_targets * sum(settings.context_lengths or ()))
    if isinstance(settings, Selecting):
        return chunks * _of_selecting(settings)
    if isinstance(settings, BesideShort):
        return chunks * (length + settings.lengths.num_targets * settings.short_context_length)
    return chunks * length


def _of_selecting(settings: Selecting) -> float:
    """Forward tokens of one chunk: of the search, and of the trial of what it chose."""
    length = settings.long_context_length
    lengths = settings.lengths
    far = int(lengths.num_far_tokens_T[-1])
    search = float(length)
    if {*LEAVE_ONE_OUT_RULES} & {*settings.rules}:
        # The tokens behind each distant token; or behind those of the short list, found by about a dozen
        # estimates each, which run the near tokens of all targets.
        listed = settings.screen or far
        search += listed * (length - far / 2)
        if settings.screen is not None:
            search += 12 * listed * (length - int(lengths.num_far_tokens_T[0]))
    trial = sum(settings.short_context_length + k for k in settings.k or ()) * lengths.num_targets
    contexts = 1 + settings.null_fraction
    trials = len(settings.rules) * (settings.trial_swaps or 1)
    return contexts * (search * (settings.search_swaps or 1) + trial * trials)


def estimate(
    trainings: Mapping[str, Any],
    measuring: Sequence[tuple[Sequence[str], Chunked]],
    text: Tokenizing | None,
) -> str:
    """The estimate in a line: of trainings by name, and of (names of models, settings) that are measured."""
    if not trainings or text is None:
        return "no estimate: it counts studies that train OLMo models"
    weights = {name: num_weights(config, text.tokenizer) for name, config in trainings.items()}
    training = sum(training_operations(config, weights[name]) for name, config in trainings.items())
    measured = sum(
        2.0
        * forward_tokens(settings, text.max_evaluation_documents)
        * sum(weights.get(name, 0) for name in names)
        for names, settings in measuring
    )
    kept = sum(weights[name] * num_checkpoints(config) for name, config in trainings.items())
    hours = [training / TRAINING / 3600, measured / MEASURING / 3600]
    said = (
        f"{sum(hours):,.1f} GPU hours of an A100 ({hours[0]:,.1f} training, {hours[1]:,.1f} measuring), more"
        " for small models"
        if sum(hours) >= 1
        else "less than one GPU hour of arithmetic; most of the time is start-up and queueing"
    )
    return (
        f"estimate of the whole study: {said}; {kept * BYTES_PER_WEIGHT / 1e9:,.2f} GB of checkpoints, and"
        f" {BYTES_PER_TOKEN} bytes per token of text"
    )


def check(commands: Sequence[Command], settings: Mapping[str, Any], lacking: Sequence[str]) -> None:
    """Print an estimate, and what stands against submitting the study; exits with 1 if anything does.

    `settings` are what each command asks for, by its name; `lacking` is what there is no text for, a sentence
    each.
    """
    trainings = {command.name: settings[command.name] for command in commands if command.stage == "pretrain"}
    # Each model once for each of its checkpoints.
    measuring = [
        (command.needs * max(1, len(command.steps)), settings[command.name])
        for command in commands
        if command.stage in COUNTED
    ]
    jobs = jobs_of(commands)
    num_tasks = sum(job.num_tasks or 1 for job in jobs)
    sys.stdout.write(f"{len(jobs)} jobs, with the tasks of arrays {num_tasks}\n")
    sys.stdout.write(f"{estimate(trainings, measuring, settings.get('tokenize_c4'))}\n")
    against = [*lacking, *refusals(sorted({job.program for job in jobs}))]
    # What a container holds is seen in it alone.
    if not torch.backends.cuda.is_built() and "CONTAINER" not in os.environ:
        against.append("this PyTorch is built without CUDA: install its CUDA build, or name a container")
    sys.stdout.writelines(f"{one}\n" for one in against)
    if against:
        sys.exit(1)
    sys.stdout.write("the text is there, and Slurm takes the jobs; sbatch slurm/test_gpu.sh tries a GPU\n")
