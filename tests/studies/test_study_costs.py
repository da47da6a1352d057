"""What a study is said to cost: formulas against numbers worked out by hand, and against what really runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from measured_documents import write_data

from pipeline.length_losses import default_context_lengths
from pipeline.studies import costs as machine_module
from pipeline.studies.checks import checked_configs
from pipeline.studies.commands import commands_of
from pipeline.studies.costs import (
    Cost,
    Machine,
    cost_of,
    data_facts,
    in_words,
    num_chunks,
    token_forwards_of_chunk,
)
from pipeline.studies.file import Evaluation, Text, load_study
from pipeline.text.chunks import chunks_of, long_enough_documents
from pipeline.text.folder import TokenizedData
from pipeline.training.config import AssumedData

EVALUATION = Evaluation(
    short_context_length=4,
    long_context_length=12,
    targets_per_chunk=3,
    rules=["leave_one_out"],
    k=[1, 2],
    intervention="remove",
)


def test_token_forwards_of_a_chunk_by_hand() -> None:
    # Far contexts of 5, 6 and 7 tokens, 11 before the last target. Removals 0 ... 6: 11 + (10 + 9 + ... + 4).
    selecting, sparse = 11 + 49, 3 * (4 + 1) + 3 * (4 + 2)
    # Foreign far contexts in two sequences, of 6 tokens and two windows, and of 7 and one.
    foreign = (6 + 2 * 4) + (7 + 4)
    assert token_forwards_of_chunk("loss_differences", EVALUATION) == 3 * 4 + 12 + foreign
    compared = replace(EVALUATION, reference_model="long")
    assert token_forwards_of_chunk("loss_differences", compared) == 3 * 4 + 2 * 12 + foreign
    assert token_forwards_of_chunk("influential_tokens", EVALUATION) == 2 * (selecting + sparse) + 3 * 4


def test_token_forwards_with_backgrounds_controls_and_judges_by_hand() -> None:
    # A control is studied at 1, 2, 4 and 5 tokens, the whole far context of the first target.
    nearest = replace(EVALUATION, rules=["nearest"])
    sparse = 3 * ((4 + 1) + (4 + 2) + (4 + 4) + (4 + 5))
    assert token_forwards_of_chunk("influential_tokens", nearest) == 2 * sparse + 3 * 4
    judged = replace(nearest, judge_with=["a", "b"])
    assert token_forwards_of_chunk("influential_tokens", judged) == 3 * (2 * sparse + 3 * 4) + 2 * 12
    # Each of two backgrounds is read once, 7 far tokens, and again from the nearest tokens on; the baseline
    # is read in the two foreign sequences.
    within = replace(nearest, intervention="background", num_backgrounds=2)
    sparse, baseline = 2 * (7 + sparse), 2 * ((6 + 2 * 4) + (7 + 4))
    assert token_forwards_of_chunk("influential_tokens", within) == 2 * sparse + 3 * 4 + baseline


@pytest.mark.parametrize("long", [256, 1024, 2048])
def test_length_losses_take_about_four_tokens_a_target_and_token_of_context(long: int) -> None:
    evaluation = Evaluation(short_context_length=8, long_context_length=long, targets_per_chunk=16)
    real = 16 * sum(default_context_lengths(long - 16))
    assert token_forwards_of_chunk("length_losses", evaluation) == pytest.approx(real, rel=0.25)


@pytest.mark.parametrize("limits", [(None, None), (2, None), (None, 1), (1, 1), (9, 9)])
def test_chunks_are_counted_as_the_stages_cut_them(
    limits: tuple[int | None, int | None], tmp_path: Path
) -> None:
    evaluation = Evaluation(
        short_context_length=4, long_context_length=6, targets_per_chunk=1,
        max_documents=limits[0], max_chunks_per_document=limits[1],
    )  # fmt: skip
    known_before = num_chunks(evaluation, tmp_path / "data")
    data = TokenizedData.open(write_data(tmp_path / "data"))
    # One document alone has no null, which the stage refuses and the count does not know of.
    documents = long_enough_documents(data, 6, max(limits[0] or 9, 2))[: limits[0]]
    cut = [chunks_of(documents, index, 6, limits[1]) for index in range(len(documents))]
    assert num_chunks(evaluation, data.folder) == sum(map(len, cut)) > 0
    assert known_before == (None if None in limits else limits[0] * limits[1])


def test_costs_of_commands_by_hand(study_file: Callable[..., Path]) -> None:
    commands = {command.name: command for command in commands_of(load_study(study_file()))}
    facts, machine = AssumedData(300), Machine(utilization=0.5, peak_flops=1e9)
    configs = checked_configs(list(commands.values()), facts)

    def cost(name: str) -> Cost:
        return cost_of(commands[name], configs, facts, machine)

    # tiny.yaml with 300 tokens, padded to 384: two layers of 128, each 4 D D for attention, 6 D D for SwiGLU.
    without_vocabulary, vocabulary = 2 * 10 * 128 * 128, 384 * 128
    of_token = 6 * (without_vocabulary + vocabulary) + 12 * 2 * 128 * 64
    assert cost("tiny-long-seed1") == Cost(
        train_tokens=4 * 4096, flops=4 * 4096 * of_token, seconds=4 * 4096 * of_token / 0.5e9
    )
    # Six chunks, four targets with eight tokens each, and a foreign far context of 55 with these beside.
    measured = 6 * (4 * 8 + 64 + 55 + 4 * 8)
    of_forward = 2 * without_vocabulary + 4 * 2 * 128 * 64
    assert cost("loss_differences-tiny").token_forwards == 2 * measured
    assert cost("loss_differences-tiny").flops == pytest.approx(2 * measured * of_forward)
    assert cost("loss_differences-tiny").seconds == pytest.approx(2 * measured * of_forward / 0.5e9)
    assert cost("summary-tiny") == Cost()
    assert (cost("tiny-long-seed1") + cost("tiny-short-seed0")).train_tokens == 8 * 4096


def test_what_only_the_data_tells_is_said_and_not_guessed(study_file: Callable[..., Path]) -> None:
    study = load_study(study_file(), ["evaluation.max_documents=null"])
    (command,) = [one for one in commands_of(study) if one.name == "loss_differences-tiny"]
    unknown = cost_of(command, {}, AssumedData(300), Machine(0.5, 1e9))
    assert unknown == Cost(num_unknown=1)
    assert in_words(unknown) == "1 not counted, as only the data tells how long"


def test_epochs_are_counted_once_there_is_data(study_file: Callable[..., Path]) -> None:
    commands = commands_of(load_study(study_file(), ["sizes.tiny.max_duration=2ep"]))
    (command,) = [one for one in commands if one.name == "tiny-long-seed1"]
    for num_train_tokens, cost in ((None, Cost(num_unknown=1)), (3 * 4096 + 5, None)):
        facts = AssumedData(300, num_train_tokens=num_train_tokens)
        configs = checked_configs(commands, facts)
        found = cost_of(command, configs, facts, Machine(0.5, 1e9))
        assert found == cost if cost else found.train_tokens == 2 * 3 * 4096


def test_the_vocabulary_is_the_tokenizers_until_there_is_data(tmp_path: Path) -> None:
    text = Text(source=["x"], tokenizer="bpe:777")
    assert data_facts(text, tmp_path / "data").vocabulary_size == 777
    assert data_facts(Text(source=["x"], tokenizer="olmo"), tmp_path).vocabulary_size > 50_000
    folder = write_data(tmp_path / "data")
    assert data_facts(text, folder) == TokenizedData.open(folder)


def test_a_peak_is_measured_once() -> None:
    machine = Machine(utilization=0.4)
    first = machine.device(torch.float32)
    assert first.peak_flops > 1e8
    assert machine.device(torch.float32) == first
    assert "GFLOP/s in float32, of which 40% are assumed to be used" in str(machine)


def test_training_is_planned_at_the_peak_that_it_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    for of_float32, of_bfloat16 in ((4e10, 4e8), (4e10, 2e11)):  # emulated, and not
        peaks = {torch.float32: of_float32, torch.bfloat16: of_bfloat16}
        monkeypatch.setattr(machine_module, "measured_peak_flops", lambda _, dtype, peaks=peaks: peaks[dtype])
        planned = [Machine(0.5).device_in(name).peak_flops for name in ("auto", "amp_bf16", "fp32")]
        assert planned == [max(of_float32, of_bfloat16), of_bfloat16, of_float32]


def test_only_the_peak_that_an_estimate_took_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {torch.float32: 4e10, torch.bfloat16: 4e8}  # bfloat16 is emulated
    monkeypatch.setattr(machine_module, "measured_peak_flops", lambda _, dtype: peaks[dtype])
    machine = Machine(0.5)
    machine.device_in("auto")
    assert str(machine) == "40 GFLOP/s in float32, of which 50% are assumed to be used"
