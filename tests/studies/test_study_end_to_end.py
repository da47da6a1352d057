"""Studies: what is refused, planned, and counted before they run; failures, signals; runs to the end."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
from forked_stages import ROOT, until
from hugging_face_families import save_model
from measured_documents import contents, json_lines
from omegaconf import OmegaConf
from sparsity_length.programs.study import STAGE
from tiny_task import TINY_TASK

from sparsity_length.cli import InputError, stage_of
from sparsity_length.measuring.rules import TRIAL_SWAPS
from sparsity_length.models.load import name_of
from sparsity_length.results.read import Results
from sparsity_length.studies import cluster
from sparsity_length.studies.commands import Command, commands_of
from sparsity_length.studies.file import load_study
from sparsity_length.studies.run import checked, run_all, submit_chain
from sparsity_length.text.tokenizer import train_bpe

CONFIGS = ROOT / "olmo_configs"
STUDY = f"""
run: run
data: {{source: [train.jsonl], evaluation_source: [evaluation.jsonl], tokenizer: "bpe:300"}}
sizes:
  tiny: {{config: {CONFIGS}/tiny.yaml, max_duration: 4, overrides: [save_interval=2, scheduler.t_warmup=2]}}
models:
  short-seed0: {{train_context_length: 16, position_scheme: pose, pose_target_length: 64}}
  long-seed1: {{train_context_length: 64, seed: 1}}
evaluation:
  stages: [loss_differences, length_losses, influential_tokens, run_notebooks, summary]
  influential_tokens: {{models: [long-seed1]}}
  short_context_length: 8
  long_context_length: 64
  targets_per_chunk: 4
  max_documents: 6
  max_chunks_per_document: 1
  rules: [leave_one_out, recency]
  k: [1, 4]
further_evaluations:
  along_training: {{stages: [loss_differences], models: [long-seed1], steps: [2], max_documents: 3}}
"""
STUDY_OF_TASKS = f"""
run: run
synthetic:
  config: {CONFIGS}/synthetic/small.yaml
  grids:
    both: &grid
      tasks: [sparse_parity]
      positions: [pose]
      largest_sparsities: [1, 2]
      seeds: [0, 1]
      overrides: [{", ".join(TINY_TASK)}, save_interval=2, eval_interval=3]
    copies: {{<<: *grid, tasks: [copy], positions: [pose, predicted], largest_sparsities: null}}
  evaluate_synthetic:
    sparse_parity: {{sizes: [10], sparsities: [1], num_examples: 4}}
    found: {{task: copy, dependencies: true, sizes: [6], largest_k: 4, num_examples: 3}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The two studies, text.yaml and tasks.yaml, and texts for the first; it is the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "text.yaml": STUDY,
        "tasks.yaml": STUDY_OF_TASKS,
        "train.jsonl": '{"text": "a few words"}\n',
        "evaluation.jsonl": '{"text": "a few words"}\n',
    }.items():
        Path(name).write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("study", "overrides", "sentence"),
    [
        ("text", ["evaluation.short_context_length=64"], "loss_differences-tiny: no distant context is left"),
        ("text", ["evaluation.k=[53]"], "k 53 is more than the 52 distant tokens of the first"),
        ("text", ["evaluation.rules=[leave_one_aut]"], "did you mean 'leave_one_out'"),
        ("text", ["models.long-seed1.train_context_length=512"], "at most model.max_sequence_length, 256"),
        ("text", ["sizes.tiny.config=none.yaml"], "tiny-short-seed0: no configuration file none.yaml"),
        # The fixture trains four steps; without its own override the warm-up is that of tiny.yaml, 100.
        ("text", ["sizes.tiny.overrides=[save_interval=2]"], "short-seed0: scheduler.t_warmup is 100 steps"),
        ("text", ["further_evaluations.along_training.steps=[3]"], "step 3 is to be .*, but .* every 2 "),
        ("text", ["further_evaluations.along_training.steps=[6]"], r"step 6 is .* up to step 4"),
        (
            "text",
            ["sizes_in_names=false", "sizes.b={config: b.yaml}"],
            "two commands are named short-seed0: si",
        ),
        ("text", ["sizes.tiny.models=[short-seed0]"], "influential_tokens-tiny: .* none of .* long-seed1"),
        (
            "text",
            ["evaluation.data.source=[none.jsonl]", "further_evaluations.along_training=null"],
            r"tokenize_c4-evaluation: cannot read none.jsonl: .* \(evaluation.data=null leaves it out\)",
        ),
        (
            "tasks",
            ["synthetic.grids.copies={tasks: [sparse_parity], largest_sparsities: [2]}"],
            "two commands are named sparse_parity-k2-pose-seed0: .* no two grids",
        ),
        ("text", ["data.tokenizer=none.json"], "there is no tokenizer none.json"),
        ("text", ["data.source=[nowhere.jsonl]"], "tokenize_c4: cannot read nowhere.jsonl: No such file"),
        # All that is lacking at once, that of later commands, too, and how to do without it.
        (
            "text",
            [
                "data.source=[nowhere.jsonl]",
                "further_evaluations.along_training.data.source=[none.jsonl]",
                "further_evaluations.along_training.data.tokenizer=run/data/tokenizer.json",
            ],
            "nowhere.jsonl: No .*; tokenize_c4-along_training: cannot read none.jsonl: .* "
            r"\(further_evaluations.along_training=null leaves it out\)",
        ),
        ("text", ["evaluation.max_documnets=3"], "'max_documnets'; did you mean 'max_documents'"),
        ("text", ["evaluation.run_notebooks={long_modles: [x]}"], "unrecognized arguments: --long-modles"),
        ("text", ["evaluation.models=[long]"], "did you mean 'long-seed1'"),
        (
            "text",
            ["further_evaluations.chosen={stages: [evaluate_tokens]}"],
            "that evaluate_tokens-tiny-chosen needs: 'influential_tokens-tiny-chosen'; did you mean",
        ),
        ("tasks", ["synthetic.grids.both.positions=[coupled]"], "parity-k1-coupled-seed0: .* has no coupled"),
        ("tasks", ["synthetic.grids.both.overrides=[num_step=3]"], "parity-k1-pose-seed0: .* 'num_steps'"),
        (
            "tasks",
            ["synthetic.grids.both=null"],
            "synthetic-sparse_parity: argument --checkpoints: ",
        ),
        (
            "tasks",
            ["synthetic.evaluate_synthetic.addition={sizes: [3]}"],
            "addition: argument --checkpoints: expected at least one",
        ),
        ("tasks", ["synthetic.evaluate_synthetic.copy={grids: [botch], sizes: [3]}"], "did you mean 'both'"),
        ("tasks", ["synthetic.evaluate_synthetic.copy={sizes: [200]}"], "examples of this size need 401 or"),
        ("tasks", ["synthetic.evaluate_synthetic.found.largest_k=0"], "argument --largest-k"),
        ("tasks", ["sythetic={}"], "Key 'sythetic' not in 'Study'"),
    ],
)
def test_what_could_not_run_to_its_end_is_refused_before_it_begins(
    folder: Path, study: str, overrides: list[str], sentence: str
) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(InputError, match=sentence):
        STAGE([f"{study}.yaml", *overrides])
    assert sorted(folder.rglob("*")) == before


def test_texts_of_a_study_and_another_one_of_its_first_evaluation(folder: Path) -> None:
    overrides = [
        "data.source=train.jsonl",
        "data.further_source=eval*.jsonl",
        "evaluation.data={source: [a.jsonl]}",
        "further_evaluations.along_training=null",
    ]
    commands = commands_of(load_study(folder / "text.yaml", overrides))
    words = {one.name: one.arguments for one in commands if one.arguments[0] in ("--out", "--data")}
    assert words.pop("tokenize_c4")[1:5] == ["run/data", "--source", "train.jsonl", "eval*.jsonl"]
    assert {read for _, read, *_ in words.values()} == {"run/evaluation/data"}


def test_sizes_that_no_name_tells_apart_are_measured_together(folder: Path) -> None:
    overrides = [
        "sizes_in_names=false",
        "sizes.tiny.models=[short-seed0]",
        "sizes.b={config: b.yaml, models: [long-seed1]}",
    ]
    commands = {one.name: one for one in commands_of(load_study(folder / "text.yaml", overrides))}
    names = ["short-seed0", "long-seed1"]
    assert {f"run/models/{name}" for name in names} <= {*commands["loss_differences"].arguments}
    assert {*names} <= {*commands["loss_differences"].needs}


def test_needles_are_planted_in_the_text_and_measured_in_its_place() -> None:
    needs = {one.name: one.needs for one in commands_of(load_study(Path("olmo_configs/studies/reach.yaml")))}
    for name in ("", "-yarn"):
        assert needs[f"plant_needles{name}"] == ("tokenize_c4",)
        assert needs[f"length_interference{name}"] == (f"plant_needles{name}",)


def test_our_configurations_are_found_in_any_folder_and_those_of_the_folder_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = commands_of(load_study(Path("olmo_configs/studies/demo.yaml")))
    stage = stage_of("pretrain")
    (asked,) = (stage.parse(one.arguments) for one in commands if one.name == "long-seed0")
    assert stage.settings(asked, []).train_context_length == 128
    (tmp_path / "olmo_configs").mkdir()
    (tmp_path / "olmo_configs" / "demo.yaml").write_text("no_such_field: 1\n")
    with pytest.raises(InputError, match="no_such_field"):
        stage.settings(asked, [])


def planned(capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[str, list[str]]:
    """Job name -> what stands after sbatch, where a job's name stands for its ID."""
    study = load_study(Path("text.yaml"), overrides)
    Path("slurm").mkdir(exist_ok=True)
    for script in ROOT.glob("slurm/*.sh"):
        shutil.copy(script, "slurm")
    submit_chain(commands_of(study), study, is_plan=True)
    lines = [shlex.split(line)[1:] for line in capsys.readouterr().out.splitlines()]
    return {words[2].removeprefix("--job-name="): words for words in lines}


@pytest.mark.usefixtures("folder")
def test_each_job_waits_for_those_it_needs_and_is_given_its_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = planned(capsys, "slurm={tokenize: 3, measure: 2}")
    models = "tiny-short-seed0:tiny-long-seed1"
    assert {name: re.findall("--dependency=afterok:(.*?) ", " ".join(jobs[name])) for name in jobs} == {
        "tokenize_c4-tasks": [],
        "tokenize_c4": ["tokenize_c4-tasks"],
        "tiny-short-seed0": ["tokenize_c4"],
        "tiny-long-seed1": ["tokenize_c4"],
        "loss_differences-tiny": [f"tokenize_c4:{models}"],
        "length_losses-tiny": [f"tokenize_c4:{models}"],
        "influential_tokens-tiny": ["tokenize_c4:tiny-long-seed1"],
        "run_notebooks-tiny": ["loss_differences-tiny:length_losses-tiny:influential_tokens-tiny"],
        "loss_differences-tiny-along_training": ["tokenize_c4:tiny-long-seed1"],
        "summary-tiny": [
            f"tokenize_c4:{models}:loss_differences-tiny:length_losses-tiny"
            ":influential_tokens-tiny:run_notebooks-tiny:loss_differences-tiny-along_training"
        ],
    }
    assert jobs["tokenize_c4-tasks"] == [
        "--parsable",
        "--kill-on-invalid-dep=yes",
        "--job-name=tokenize_c4-tasks",
        "--output=run/logs/tokenize_c4-tasks-%A_%a.log",
        "--array=0-2",
        "slurm/tokenize_c4.sh",
        "--num-tasks",
        "3",
        "--out",
        "run/data",
        "--source",
        "train.jsonl",
        "--evaluation-source",
        "evaluation.jsonl",
        "--tokenizer",
        "bpe:300",
    ]
    assert jobs["tokenize_c4"][-3:] == ["slurm/merge_c4.sh", "--out", "run/data"]
    assert "--output=run/logs/tiny-long-seed1-%j.log" in jobs["tiny-long-seed1"]
    assert jobs["length_losses-tiny"][4] == "--array=0-1"
    assert jobs["length_losses-tiny"][6:10] == ["slurm/loss_differences.sh", "--num-tasks", "2", "--data"]
    assert jobs["summary-tiny"][-6:-3] == ["slurm/analysis.sh", "analysis/summary.py", "--results"]
    in_one_piece = planned(capsys)  # which needs no merge
    assert "tokenize_c4-tasks" not in in_one_piece
    assert in_one_piece["tokenize_c4"][4:8] == ["--array=0-0", "slurm/tokenize_c4.sh", "--num-tasks", "1"]


@pytest.mark.parametrize(
    ("overrides", "trained", "left_out"),
    [
        (
            ["sizes.large={config: tiny.yaml}", "sizes.tiny=null", "models.short-seed0=null"],
            {"large-long-seed1"},
            {"large-short-seed0", "tiny-long-seed1"},
        ),
        (
            ["sizes.large={config: tiny.yaml, models: []}"],
            {"tiny-long-seed1"},
            {"large-short-seed0", "large-long-seed1"},
        ),
    ],
)
def test_what_is_null_is_left_out(
    overrides: list[str], trained: set[str], left_out: set[str], folder: Path
) -> None:
    names = {command.name for command in commands_of(load_study(folder / "text.yaml", overrides))}
    assert names >= trained and not names & left_out


def test_jobs_without_a_gpu_go_where_cluster_env_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "slurm").mkdir()
    (folder / "slurm" / "cluster.env").write_text("export CPU_PARTITION=cpu\n")
    for words in planned(capsys, "slurm.tokenize=2").values():
        (script,) = (word for word in words if word.startswith("slurm/"))
        of_cpu = ("slurm/tokenize_c4.sh", "slurm/merge_c4.sh", "slurm/analysis.sh")
        assert ("--partition=cpu" in words) == (script in of_cpu)
    (folder / "slurm" / "pretrain.sh").unlink()
    study = load_study(Path("text.yaml"), [])
    with pytest.raises(InputError, match=r"no slurm/pretrain.sh here"):
        submit_chain(commands_of(study), study, is_plan=True)


def test_hours_and_disk_are_counted(folder: Path) -> None:
    overrides = [
        "sizes.tiny.overrides=[save_interval=3,scheduler.t_warmup=2]",
        "further_evaluations.along_training.steps=[3, 4]",
    ]
    commands = commands_of(load_study(folder / "text.yaml", overrides))
    _, settings, lacking = checked(commands, is_plan=True)
    config = settings["tiny-short-seed0"]
    # tiny.yaml: 2 layers of width 128 with a SwiGLU of 512; 300 tokens take 384 rows, tied.
    weights = cluster.num_weights(config, "bpe:300")
    assert weights == 384 * 128 + 2 * (4 * 128**2 + 128 * 512 + 256 * 128)
    # Four steps; each token attends to 8 of 16 tokens on average, twice, in 2 layers of width 128.
    of_all_tokens = 6 * 4 * config.global_train_batch_tokens
    assert cluster.training_operations(config, weights) == of_all_tokens * (weights + 2 * 8 * 2 * 128)
    assert cluster.num_checkpoints(config) == 2  # steps 3 and 4
    config.save_interval = None
    assert cluster.num_checkpoints(config) == 1

    # Five documents of 64 tokens, 4 targets with 8 near tokens and at most 55 distant ones.
    assert cluster.forward_tokens(settings["loss_differences-tiny"], 5) == 5 * (64 + 4 * 8)
    search = 64 + 55 * (64 - 55 / 2)
    trial = 2 * 4 * ((8 + 1) + (8 + 4))
    counted = cluster.forward_tokens(settings["influential_tokens-tiny"], 5)
    assert counted == 5 * 2 * (search + trial * TRIAL_SWAPS)

    with (
        patch.object(cluster, "estimate", wraps=cluster.estimate) as counting,
        pytest.raises(SystemExit),  # without a cluster
    ):
        cluster.check(commands, settings, lacking)
    # The last measures it at two steps.
    assert [names.count("tiny-long-seed1") for names, _ in counting.call_args.args[1]] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("time", "minutes"),
    [
        ("30", 30),
        ("30:30", 30.5),
        ("12:00:00", 720),
        ("1-12", 2160),
        ("1-12:30", 2190),
        ("infinite", float("inf")),
    ],
)
def test_times_as_slurm_writes_them(time: str, minutes: float) -> None:
    assert cluster.minutes_of(time) == minutes


# Writes down that it ran, fails while a file FAIL stands beside it, and says that it is there.
FAILING = """
import pathlib, sys
name = sys.argv[1]
with open("ran", "a") as log:
    log.write(name + "\\n")
if pathlib.Path("FAIL-" + name).exists():
    print("no good", file=sys.stderr)
    sys.exit(75)
print(name, "is there")
"""
# Never ends by itself; what it does when it is told to is the argument's.
SLOW = """
import pathlib, signal, subprocess, sys, time
name, reaction = sys.argv[1:3]
if reaction == "saves":
    def save(*_):
        pathlib.Path(name + "-saved").touch()
        sys.exit(75)
    signal.signal(signal.SIGTERM, save)
elif reaction == "starts":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "grandchild"])
pathlib.Path(name + "-started").touch()
time.sleep(60)
"""


class Script(Command):
    """A command that is no program of ours."""

    def words(self) -> list[str]:
        return [self.program, *self.arguments]


@pytest.fixture
def _handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a folder of its own, where signals are handled as before once the test is over."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as after:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            # Not ignored, as SIGHUP is under nohup.
            after.callback(signal.signal, number, signal.signal(number, signal.SIG_DFL))
        yield


@pytest.mark.usefixtures("_handlers")
def test_after_a_failure_only_what_is_left_runs(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    Path("stage.py").write_text(FAILING)
    commands = [
        Script(name, "stage.py", (name,), needs)
        for name, needs in (("first", ()), ("second", ("first",)), ("third", ("second",)))
    ]
    Path("FAIL-second").touch()
    assert run_all(commands, [{}] * 2, Path("run/logs")) == 75
    assert capfd.readouterr().out == "sparsity stage first\nfirst is there\nsparsity stage second\n"
    assert caplog.messages[-2] == "second ended with exit code 75; run the same command again to resume"
    assert caplog.messages[-1].startswith("the last lines of run/logs/second.log:\n")
    assert caplog.messages[-1].endswith("\nno good")
    Path("FAIL-second").unlink()
    assert run_all(commands[1:], [{}] * 2, Path("run/logs")) == 0
    assert Path("ran").read_text().split() == ["first", "second", "second", "third"]
    assert Path("run/logs/second.log").read_text().count("--- ") == 2  # one heading per run


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_request_to_stop_reaches_all_that_runs(number: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    Path("slow.py").write_text(SLOW)
    reactions = {"pretrain": "saves", "measuring": "ends", "notebooks": "starts"}
    commands = [Script(name, "slow.py", (name, reaction)) for name, reaction in reactions.items()]

    def stop() -> None:
        until(lambda: all(Path(f"{name}-started").exists() for name in reactions), 60, lambda: "not begun")
        os.kill(os.getpid(), number)

    threading.Thread(target=stop).start()
    assert run_all(commands, [{}] * len(commands), Path("run/logs")) == 75
    assert "stopped by a signal, trainings once they have saved; run the same" in caplog.text
    assert Path("pretrain-saved").exists()
    here = os.path.realpath(".")  # where only this process is left
    until(
        lambda: sum(process.info["cwd"] == here for process in psutil.process_iter(["cwd"])) == 1,
        5,
        lambda: "a process is left",
    )


def run(folder: Path, *words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run study.py in a folder, as it is typed, to this exit code."""
    done = subprocess.run(
        [sys.executable, ROOT / "pipeline" / "study.py", *words],
        cwd=folder,
        env=os.environ | {"TEXT": "text", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == code, done.stderr
    return done


def parquet_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


@pytest.mark.slow
def test_a_study_goes_on_where_a_stage_failed_and_sees_what_changed(folder: Path) -> None:
    config = Path(shutil.copy(CONFIGS / "tiny.yaml", folder))
    words = [
        "text.yaml",
        "sizes.tiny.config=tiny.yaml",
        "sizes.tiny.overrides=[save_interval=2,model.d_model=16,model.n_heads=2,model.n_layers=1,"
        "model.max_sequence_length=64,scheduler.t_warmup=2,global_train_batch_tokens=256,"
        "device_train_microbatch_tokens=256,precision=fp32,eval_context_lengths=null]",
        "evaluation.stages=[loss_differences,influential_tokens,summary]",
    ]
    (folder / "train.jsonl").write_text(json_lines(0, 40, 80))
    (folder / "evaluation.jsonl").write_text('{"text": "too short"}\n')
    assert " ended with exit code 2; run the same command again" in run(folder, *words, code=2).stderr

    (folder / "evaluation.jsonl").write_text(json_lines(1, 40, 80))
    shutil.rmtree(folder / "run")  # other text is another study
    # Two shards, which two processes measure, and one.
    measure = partial(run, folder, *words, "evaluation.max_documents=40", "--jobs")
    assert "nats per token from the distant context" in measure("2").stdout
    logs = contents(folder / "run" / "logs").keys()
    assert logs >= {"loss_differences-tiny-2-of-2.log"} and "loss_differences-tiny.log" not in logs

    # What was removed is measured again, by one process: to the same bytes. A comment changes nothing.
    measured = parquet_files(folder / "run")
    assert {*re.findall("loss_differences/(.*?)/", " ".join(measured))} == {
        "tiny-short-seed0",
        "tiny-long-seed1",
        "tiny-long-seed1-step2",
    }
    for name in ("along_training", "results"):
        shutil.rmtree(folder / "run" / name)
    config.write_text(config.read_text() + "# a comment\n")
    again = measure("1")
    assert (folder / "run/logs/loss_differences-tiny.log").is_file()
    assert len(re.findall("(?m)^sparsity ", again.stdout)) == 4  # no text, no models
    for name in ("train.jsonl", "evaluation.jsonl"):  # text may be put away once it is tokenized
        (folder / name).unlink()
    nothing_left = measure("1")
    assert nothing_left.stdout.startswith("sparsity summary ") and again.stdout.endswith(nothing_left.stdout)
    assert parquet_files(folder / "run") == measured

    config.write_text(config.read_text().replace("learning_rate: 6.0e-3", "learning_rate: 6.1e-3"))
    refused = measure("1", code=2)
    assert "run/models/tiny-short-seed0 holds a run made with other settings" in refused.stderr
    assert "optimizer.learning_rate was 0.006, now 0.0061" in refused.stderr


FAMILY_OF = {
    "EleutherAI/pythia": ("gpt_neox", {}),
    "HuggingFaceTB/SmolLM3": ("smollm3", {}),
    "meta-llama/Llama-2": ("llama", {}),
    "dwzhu/LLaMA2-7B-PoSE-Linear": ("llama_linear_rope", {}),
    "dwzhu/LLaMA2-7B-PoSE-YaRN": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "max_position_embeddings": 256,
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("study", ["polypythias", "smollm3", "pose_llama"])
def test_a_study_of_existing_models_runs_to_its_summary(study: str, tmp_path: Path) -> None:
    """Tiny random models stand in folders of the study's own words, all with one tokenizer."""
    text = json_lines(0, 12, 120)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.json").write_text(text)
    (tmp_path / "train.json").write_text(json_lines(1, 4, 60))
    tokenizer = train_bpe([text], 320).to_json()
    fields = OmegaConf.load(CONFIGS / "studies" / f"{study}.yaml")
    checkpoints = [str(model.checkpoint) for model in fields.models.values()]
    for seed, word in enumerate(dict.fromkeys([*checkpoints, str(fields.data.tokenizer)])):
        family, further = next(made for start, made in FAMILY_OF.items() if word.startswith(start))
        save_model(tmp_path / word, tokenizer, family, seed, **further)
    names = {name_of(checkpoint) for checkpoint in checkpoints}
    words = [
        f"olmo_configs/studies/{study}.yaml",
        "data.source=[train.json]",
        "evaluation.short_context_length=8",
        "evaluation.long_context_length=48",
        "evaluation.targets_per_chunk=4",
        "evaluation.max_documents=8",
        "evaluation.k=[1,4]",
        "evaluation.null_fraction=1",
        "evaluation.dtype=float32",
    ]
    assert "nats per token from the distant context" in run(tmp_path, *words).stdout
    results = Results(tmp_path / "runs" / study / "results")
    assert set(results.frame("loss_differences")["model"]) == names
    evaluators = set(results.frame("sparse_context_losses")["evaluator"]) - {"the same model"}
    assert evaluators and evaluators < names
    assert "tokenize_c4" not in run(tmp_path, *words).stdout


@pytest.mark.slow
def test_a_whole_study_to_its_figures(folder: Path) -> None:
    words = [
        "tasks.yaml",
        "synthetic.grids.both.largest_sparsities=[1]",
        "synthetic.grids.both.seeds=[0]",
        "synthetic.grids.copies.seeds=[0]",
    ]
    run(folder, *words)
    found = {path.rpartition("/")[0] for path in parquet_files(folder / "run" / "results")}
    assert found == {
        "synthetic_accuracy/sparse_parity-k1-pose-seed0",
        "synthetic_examples/sparse_parity-k1-pose-seed0",
        "found_dependencies/copy-pose-seed0",
        "found_dependencies/copy-predicted-seed0",
    }
    assert (folder / "run" / "figures" / "synthetic_tasks.ipynb").is_file()
    # The notebooks, which know by themselves.
    assert len(re.findall("(?m)^sparsity ", run(folder, *words).stdout)) == 1
