"""What a study is said to cost: formulas against numbers worked out by hand, and against what really runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from measured_documents import write_data

from pipeline.studies import costs as costs_module
from pipeline.studies.commands import commands_of
from pipeline.studies.costs import (
    Cost,
    Machine,
    cost_of,
    lines_of_plan,
    num_chunks,
    token_forwards_of_chunk,
)
from pipeline.studies.file import Evaluation, load_study
from pipeline.study import check_settings
from pipeline.text.chunks import chunks_of, long_enough_documents
from pipeline.text.folder import TokenizedData

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "olmo_configs" / "studies" / "gpu.yaml"
MINUTE = 60
EVALUATION = Evaluation(
    short_context_length=4, long_context_length=12, targets_per_chunk=3, rules=["leave_one_out"], k=[1, 2],
    intervention="remove",
)  # fmt: skip


def test_token_forwards_of_a_chunk_by_hand() -> None:
    # Far contexts of 5, 6 and 7 tokens, 11 before the last target. Removals 0 ... 6: 11 + (10 + 9 + ... + 4).
    selecting, sparse = 11 + 49, 3 * (4 + 1) + 3 * (4 + 2)
    # Foreign far contexts in two sequences, of 6 tokens and two windows, and of 7 and one.
    foreign = (6 + 2 * 4) + (7 + 4)
    assert token_forwards_of_chunk("loss_differences", EVALUATION) == 3 * 4 + 12 + foreign
    compared = replace(EVALUATION, reference_model="long")
    assert token_forwards_of_chunk("loss_differences", compared) == 3 * 4 + 2 * 12 + foreign
    # Of the null the removals are passes over the same two sequences, which are read first.
    of_null = (14 + (14 + 13 + 12 + 11 + 10 + 9)) + (11 + (11 + 10 + 9 + 8 + 7 + 6 + 5))
    trying = 2 * sparse + 3 * 4 + 11
    assert token_forwards_of_chunk("influential_tokens", EVALUATION) == selecting + of_null + trying


def test_token_forwards_with_backgrounds_controls_and_judges_by_hand() -> None:
    # A control is studied at 1, 2, 4 and 5 tokens, the whole far context of the first target.
    nearest = replace(EVALUATION, rules=["nearest"])
    sparse = 3 * ((4 + 1) + (4 + 2) + (4 + 4) + (4 + 5))
    assert token_forwards_of_chunk("influential_tokens", nearest) == 2 * sparse + 3 * 4 + 11
    judged = replace(nearest, judge_with=["a", "b"], choosers_judge=True)
    assert token_forwards_of_chunk("influential_tokens", judged) == 3 * (2 * sparse + 3 * 4 + 11)
    # Each of two backgrounds is read once, 7 far tokens, and again from the nearest tokens on; the baseline
    # is read in the two foreign sequences.
    within = replace(nearest, intervention="background", num_backgrounds=2)
    sparse, baseline = 2 * (7 + sparse), 2 * ((6 + 2 * 4) + (7 + 4))
    assert token_forwards_of_chunk("influential_tokens", within) == 2 * sparse + 3 * 4 + 11 + baseline


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
    study = load_study(study_file())
    commands = {command.name: command for command in commands_of(study)}
    known = check_settings(study, list(commands.values()), [])
    machine = Machine(utilization=0.5, peak_flops=1e9)

    def cost(name: str) -> Cost:
        return cost_of(commands[name], known, machine)

    # tiny.yaml with 300 tokens, padded to 384: two layers of 128, each 4 D D for attention, 6 D D for SwiGLU.
    without_vocabulary, vocabulary = 2 * 10 * 128 * 128, 384 * 128
    of_token = 6 * (without_vocabulary + vocabulary) + 12 * 2 * 128 * 64
    flops = 4 * 4096 * of_token
    assert cost("tiny-long-seed1") == Cost(train_tokens=4 * 4096, flops=flops, seconds=flops / 0.5e9)
    # Six chunks, four targets with eight tokens each, and a foreign far context of 55 with these beside.
    measured = 6 * (4 * 8 + 64 + 55 + 4 * 8)
    of_forward = 2 * without_vocabulary + 4 * 2 * 128 * 64
    flops = 2 * measured * of_forward
    assert cost("loss_differences-tiny") == pytest.approx(Cost(0, 2 * measured, flops, flops / 0.5e9))
    assert cost("summary-tiny") == Cost()
    assert (cost("tiny-long-seed1") + cost("tiny-short-seed0")).train_tokens == 8 * 4096


def test_small_models_are_timed_at_their_own_work(study_file: Callable[..., Path]) -> None:
    costs_module._timed.clear()
    study = load_study(study_file())
    commands = [command for command in commands_of(study) if command.about]
    known = check_settings(study, commands, [])
    machine = Machine(0.4, num_jobs=2)
    costs = {command.name: cost_of(command, known, machine) for command in commands}
    timed = list(costs_module._timed.values())
    assert len(timed) == 3  # of long and short sequences in training, and of measuring; seeds share theirs
    for name in ("tiny-long-seed1", "tiny-short-seed0"):
        assert costs[name].seconds in [4 * 4096 * seconds for seconds in timed]
    measured = costs["loss_differences-tiny"]
    assert measured.seconds in [pytest.approx(measured.token_forwards * seconds) for seconds in timed]
    *_, total = lines_of_plan(commands, set(), known, machine)
    seconds = sum(cost.seconds for cost in costs.values())
    assert f"{seconds / 2 / 3600:,.2f} hours" in total
    assert not Machine(0.4, 1e9).is_timed(known.configs["tiny-long-seed1"].model)


def test_a_machine_has_a_peak_a_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    for of_bfloat16 in (4e8, 2e11):  # emulated, and not
        peaks = {torch.float32: 4e10, torch.bfloat16: of_bfloat16}
        monkeypatch.setattr(costs_module, "_measured_peak", peaks.get)
        planned = [Machine(0.5).flops_per_second(name) for name in ("auto", "amp_bf16", "fp32")]
        assert planned == [0.5 * peak for peak in (max(peaks.values()), of_bfloat16, 4e10)]
    machine = Machine(utilization=0.4, gpu="h100")
    assert machine.flops_per_second("amp_bf16") == machine.flops_per_second("auto") == 0.4 * 989e12
    assert machine.flops_per_second(None) == 0.4 * 67e12
    assert str(machine) == "the data sheet of the H100, of which 40% are assumed to be used"


def test_the_study_for_one_gpu_fits_its_hour_and_saves_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEXT", str(tmp_path))
    study, h100 = load_study(GPU, [f"run={tmp_path / 'run'}"]), Machine(utilization=0.4, gpu="h100")
    commands = commands_of(study)
    known = check_settings(study, commands, [command for command in commands if command.about])
    costs = {command.name: cost_of(command, known, h100) for command in commands}
    assert {name: cost.seconds for name, cost in costs.items() if cost.seconds > 8 * MINUTE} == {}
    assert 20 * MINUTE < sum(cost.seconds for cost in costs.values()) < 40 * MINUTE
    assert not any(cost.num_unknown for cost in costs.values())
    for name, config in known.configs.items():
        num_steps = costs[name].train_tokens // config.tokens_per_step
        assert costs[name].seconds * config.save_interval / num_steps < 2 * MINUTE  # what a kill costs
    # In float32 a GPU does a fifteenth of its bfloat16; a plan that did not know would tell a few seconds.
    assert costs["influential_tokens-150m"].seconds > 3 * MINUTE
    assert costs["length_losses-150m-at_2048"].seconds < 3 * MINUTE
