"""Which commands a study means, word for word."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.studies.commands import commands_of
from pipeline.studies.file import SyntheticStudy, load_study

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "olmo_configs" / "studies"
TINY = str(ROOT / "olmo_configs" / "tiny.yaml")
LENGTHS = "--long-context-length 64 --targets-per-chunk 4 --max-documents 6 --max-chunks-per-document 1"
BOTH = "run/models/tiny-short-seed0 run/models/tiny-long-seed1"


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def typed(path: Path, *overrides: str) -> list[str]:
    return [str(command) for command in commands_of(load_study(path, overrides))]


def test_a_tiny_study_word_for_word(study_file: Callable[..., Path]) -> None:
    assert typed(study_file()) == [
        "python pipeline/tokenize_c4.py --out run/data --source train.jsonl"
        " --evaluation-source evaluation.jsonl --tokenizer bpe:300",
        f"python pipeline/pretrain.py {TINY} --data run/data --save-folder run/models/tiny-short-seed0"
        " max_duration=4 save_interval=2 scheduler.t_warmup=2 train_context_length=16 position_scheme=pose"
        " pose_target_length=64 seed=0",
        f"python pipeline/pretrain.py {TINY} --data run/data --save-folder run/models/tiny-long-seed1"
        " max_duration=4 save_interval=2 scheduler.t_warmup=2 train_context_length=64 seed=1",
        f"python pipeline/loss_differences.py --data run/data --checkpoints {BOTH} --results run/results/tiny"
        f" --short-context-length 8 {LENGTHS}",
        f"python pipeline/length_losses.py --data run/data --checkpoints {BOTH} --results run/results/tiny"
        f" {LENGTHS}",
        "python pipeline/influential_tokens.py --data run/data --checkpoints run/models/tiny-long-seed1"
        f" --results run/results/tiny --short-context-length 8 {LENGTHS}"
        " --rules leave_one_out nearest --k 1 4",
        "python analysis/run_notebooks.py --results run/results/tiny --figures run/figures/tiny"
        " --data run/data --long-models tiny-long-seed1 --short-models tiny-short-seed0"
        " --train-context-lengths tiny-short-seed0=16 tiny-long-seed1=64",
        "python analysis/summary.py --results run/results/tiny --figures run/figures/tiny",
        "python pipeline/loss_differences.py --data run/data"
        " --checkpoints run/models/tiny-long-seed1/step2-unsharded --results run/along_training/results/tiny"
        f" --short-context-length 8 {LENGTHS.replace('documents 6', 'documents 3')}",
    ]


def test_what_needs_what(study_file: Callable[..., Path]) -> None:
    commands = commands_of(load_study(study_file()))
    assert {command.name: command.needs for command in commands} == {
        "tokenize_c4": (),
        "tiny-short-seed0": ("tokenize_c4",),
        "tiny-long-seed1": ("tokenize_c4",),
        "loss_differences-tiny": ("tokenize_c4", "tiny-short-seed0", "tiny-long-seed1"),
        "length_losses-tiny": ("tokenize_c4", "tiny-short-seed0", "tiny-long-seed1"),
        "influential_tokens-tiny": ("tokenize_c4", "tiny-long-seed1"),
        "run_notebooks-tiny": ("loss_differences-tiny", "length_losses-tiny", "influential_tokens-tiny"),
        "summary-tiny": ("run_notebooks-tiny",),
        "loss_differences-tiny-along_training": ("tokenize_c4", "tiny-long-seed1"),
    }
    done = set()
    for command in commands:  # in an order in which they can run one after another
        assert set(command.needs) <= done
        done.add(command.name)
    assert commands[-1].writes == (
        Path("run/along_training/results/tiny/_stages/loss_differences/model=tiny-long-seed1-step2"),
    )


def test_elsewhere_than_in_the_root_programs_are_named_by_their_whole_paths(
    study_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed(study_file())[0].startswith(f"python {ROOT}/pipeline/tokenize_c4.py --out run/data ")


def test_a_text_of_its_own_gets_its_own_data(study_file: Callable[..., Path]) -> None:
    novels = (
        "  novels: {stages: [length_losses], data: {source: [n], tokenizer: '${run}/data/tokenizer.json'}}\n"
    )
    path = study_file(("further_evaluations:\n", f"further_evaluations:\n{novels}"))
    (tokenize,) = [line for line in typed(path) if "--source n " in line]
    assert tokenize == (
        "python pipeline/tokenize_c4.py --out run/novels/data --source n --tokenizer run/data/tokenizer.json"
    )
    (measure,) = [line for line in typed(path) if "--data run/novels/data" in line]
    assert f"length_losses.py --data run/novels/data --checkpoints {BOTH} --results run/novels/r" in measure


def test_sizes_and_steps_that_were_measured_alike_are_compared_at_the_end(
    study_file: Callable[..., Path],
) -> None:
    steps = ("stages: [loss_differences]", "stages: [loss_differences, influential_tokens]")
    *_, last = commands_of(load_study(study_file(steps)))
    assert str(last) == (
        "python analysis/run_notebooks.py --results run/results/tiny"
        " --also-results run/along_training/results/tiny --figures run/figures --data run/data"
        " --notebooks model_scale"
    )
    assert {"summary-tiny", "influential_tokens-tiny-along_training"} <= set(last.needs)
    removed = (steps[1], steps[1] + ", intervention: remove")
    assert "model_scale" not in str(commands_of(load_study(study_file(steps, removed)))[-1])
    own_text = (steps[1], steps[1] + ", data: {source: [n], tokenizer: olmo}")
    assert "model_scale" not in str(commands_of(load_study(study_file(steps, own_text)))[-1])


def test_a_size_may_train_some_of_the_models_only(study_file: Callable[..., Path]) -> None:
    large = f"  large:\n    config: {TINY}\n    max_duration: 4\n    models: [long-seed1]\n"
    study = load_study(study_file(("models:\n", f"{large}models:\n")))
    commands = {command.name: command for command in commands_of(study)}
    assert {"tiny-short-seed0", "tiny-long-seed1", "large-long-seed1"} <= set(commands)
    assert "large-short-seed0" not in commands
    assert " --checkpoints run/models/large-long-seed1 --results" in str(commands["loss_differences-large"])
    assert "--short-models" not in str(commands["run_notebooks-large"])
    assert f" --checkpoints {BOTH} --results" in str(commands["loss_differences-tiny"])


def test_models_beside_those_that_are_measured(study_file: Callable[..., Path]) -> None:
    further = "k: [1, 4]\n  intervention: background\n  num_backgrounds: 2\n  num_subsets: 8"
    beside = "\n  judge_with: [short-seed0]\n  reference_model: long-seed1"
    study = load_study(study_file(("k: [1, 4]", further + beside), ("models: [long-seed1], steps", "steps")))
    commands = {command.name: command for command in commands_of(study)}
    losses, tokens = commands["loss_differences-tiny"], commands["influential_tokens-tiny"]
    assert str(losses).endswith(" --reference-model run/models/tiny-long-seed1")
    assert str(tokens).endswith(
        " --k 1 4 --intervention background --num-backgrounds 2 --num-subsets 8"
        " --judge-with run/models/tiny-short-seed0"
    )
    assert tokens.needs == ("tokenize_c4", "tiny-long-seed1", "tiny-short-seed0")
    assert tokens.reads[-1] == "run/models/tiny-short-seed0"
    # At an earlier step too, the reference is the model as it was trained to the end.
    along = commands["loss_differences-tiny-along_training"]
    assert str(along).endswith(" --reference-model run/models/tiny-long-seed1")
    assert "--reference-model" not in str(commands["length_losses-tiny"])


def test_the_demo_is_what_the_page_says() -> None:
    page = (ROOT / "pipeline" / "README.md").read_text().replace("\\\n", " ")
    models = [
        f"runs/demo/models/{name}" for name in ("short-contiguous", "short-pose", "long-seed0", "long-seed1")
    ]
    page = page.replace("runs/demo/models/*", " ".join(models))
    shown = [set(line.split()) for line in page.splitlines() if "runs/demo" in line]
    commands = typed(STUDIES / "demo.yaml")
    assert len(commands) == 10
    for command in commands:
        assert set(command.split()) in shown, command


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_file_is_a_study(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("C4", "SCRATCH", "TEXT"):
        monkeypatch.setenv(variable, "/text")
    study = load_study(path)
    configured = [study.synthetic] if isinstance(study, SyntheticStudy) else study.sizes.values()
    assert all((ROOT / part.config).is_file() for part in configured)
    names = [command.name for command in commands_of(study)]
    assert len(names) == len(set(names))


def test_the_reference_study_goes_on_with_the_folders_of_its_first_runs() -> None:
    commands = typed(STUDIES / "reference.yaml", "text_folder=/c4")
    for expected in (
        "python pipeline/pretrain.py olmo_configs/2m.yaml --data runs/reference/data"
        " --save-folder runs/reference/models/2m-long-seed0 train_context_length=256 seed=0",
        "python pipeline/pretrain.py olmo_configs/2m.yaml --data runs/reference/data"
        " --save-folder runs/reference/models/2m-short-pose-seed0 train_context_length=64"
        " position_scheme=pose pose_target_length=256 seed=0",
    ):
        assert expected in commands
