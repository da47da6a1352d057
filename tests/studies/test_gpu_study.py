"""The study for one GPU: as short as it says by its own estimate, and run at toy size on a CPU."""

import json
import random
from pathlib import Path

import forked_stages
import pytest
import torch

from pipeline.cli import InputError
from pipeline.results.read import read_artefact
from pipeline.studies.checks import checked_text
from pipeline.studies.commands import Command, commands_of
from pipeline.studies.costs import Machine, lines_of_plan
from pipeline.studies.file import load_study
from pipeline.study import _machine, parser

GPU = Path(__file__).resolve().parents[2] / "olmo_configs" / "studies" / "gpu.yaml"
H100 = Machine(utilization=0.4, gpu="h100")
MINUTE = 60
MOST_OF_A_COMMAND, MOST_OF_ALL = 8 * MINUTE, 40 * MINUTE
TINY = (
    "[model.d_model=16,model.n_heads=2,model.n_layers=1,model.mlp_ratio=2,scheduler.t_warmup=1,save_interval=2,"
    "global_train_batch_tokens=256,device_train_microbatch_tokens=128,precision=fp32,eval_context_lengths=null,"
    "peak_flops=1e11,model.max_sequence_length=128]"
)
TOY = [
    "data.tokenizer=bpe:300", "data.evaluation_fraction=0.3", f"sizes.60m.overrides={TINY}",
    "sizes.60m.max_duration=4", "models.short-pose.train_context_length=32",
    "models.short-pose.pose_target_length=128", "models.long-seed0.train_context_length=128",
    "evaluation.short_context_length=8", "evaluation.long_context_length=64",
    "evaluation.targets_per_chunk=4", "evaluation.max_documents=3", "evaluation.documents_per_shard=2",
    "evaluation.stages=[loss_differences,influential_tokens]",
    "further_evaluations.at_2048.long_context_length=96",
]  # fmt: skip


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of some text; none of it parquet."""
    folder = tmp_path / "text"
    folder.mkdir()
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdeghilmnorstu", k=generator.randint(2, 7))) for _ in range(80)]
    texts = [" ".join(generator.choices(words, k=120)) for _ in range(40)]
    (folder / "some.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in texts))
    monkeypatch.setenv("TEXT", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_no_command_takes_longer_than_said_and_all_fit_the_hour(text: Path, tmp_path: Path) -> None:
    study = load_study(GPU, [f"run={tmp_path / 'run'}"])
    commands = commands_of(study)
    forecast = checked_text(study, commands, commands)
    costs = {command.name: forecast.cost_of(command, H100) for command in commands}
    assert {name: cost.seconds for name, cost in costs.items() if cost.seconds > MOST_OF_A_COMMAND} == {}
    assert 20 * MINUTE < sum(cost.seconds for cost in costs.values()) < MOST_OF_ALL
    assert not any(cost.num_unknown for cost in costs.values())
    trainings = dict(forecast.configs)
    assert set(trainings) == {"60m-short-pose", "60m-long-seed0", "150m-short-pose", "150m-long-seed0"}
    for name, config in trainings.items():
        steps_of_all = forecast.cost_of(_named(commands, name), H100).train_tokens // config.tokens_per_step
        saved_every = costs[name].seconds * config.save_interval / steps_of_all
        assert saved_every < 2 * MINUTE  # what a kill costs at most
    # In float32 a GPU does a fifteenth of its bfloat16; a plan that did not know would tell a few seconds.
    assert costs["influential_tokens-150m"].seconds > 3 * MINUTE
    assert costs["length_losses-150m-at_2048"].seconds < 3 * MINUTE


def _named(commands: list[Command], name: str) -> Command:
    return next(command for command in commands if command.name == name)


def test_every_command_of_a_size_runs_at_toy_size(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    study = load_study(GPU, [f"run={run}", *TOY])
    of_60m = [command for command in commands_of(study) if "150m" not in command.name]
    commands = [command for command in of_60m if command.name != "model_scale"]
    assert len(commands) == 1 + 2 + 2 + 2
    for command in commands:
        done = forked_stages.run(command.program, *command.arguments, cwd=tmp_path)
        assert done.returncode == 0, (command.name, done.stderr)
        assert all(path.exists() for path in command.writes)
    for place, length in (("", 64), ("at_2048", 96)):
        rows = read_artefact(run / place / "results" / "60m", "loss_differences")
        assert set(rows["model"]) == {"60m-short-pose", "60m-long-seed0"}
        assert rows["target_position"].max() == length - 1
    # Now that there is text, the plan tells how often it is read.
    longer = load_study(GPU, [f"run={run}", *TOY, "sizes.60m.max_duration=400"])
    forecast = checked_text(longer, commands_of(longer), [])
    long = _named(commands_of(longer), "60m-long-seed0")
    passes = forecast.need_of(long.about).text_passes
    assert passes == pytest.approx(400 * 256 / forecast.facts.num_train_tokens)
    line, *_ = lines_of_plan([long], [long], forecast, H100)
    assert line.endswith(f", reads the text {passes:,.1f} times") and passes > 2


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--gpu", "h10"], "unknown GPU 'h10'; did you mean 'h100'?"),
        (["--gpu", "h100", "--peak-flops", "1e12"], "--gpu and --peak-flops both say how fast"),
    ],
)
def test_machines_that_cannot_be_estimated_for(flags: list[str], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        _machine(parser().parse_args([str(GPU), "--dry-run", *flags]))
    assert str(error.value).startswith(sentence)


def test_a_gpus_data_sheet_tells_a_peak_a_dtype() -> None:
    assert H100.device(torch.bfloat16).peak_flops == 989e12
    assert H100.device(torch.float32).peak_flops == 67e12
    assert H100.device_in("auto").peak_flops == 989e12
    assert str(H100).endswith(
        "67,000 GFLOP/s in float32 by the data sheet of the H100, of which 40% are assumed to be used"
    )
