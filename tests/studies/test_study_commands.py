"""What commands a study means beyond those of the study files, which tests/golden holds word for word."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.studies.commands import commands_of
from pipeline.studies.file import load_study

ROOT = Path(__file__).resolve().parents[2]
TINY = str(ROOT / "olmo_configs" / "tiny.yaml")
BOTH = "run/models/tiny-short-seed0 run/models/tiny-long-seed1"


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def typed(path: Path, *overrides: str) -> dict[str, str]:
    """Name -> command."""
    return {command.name: str(command) for command in commands_of(load_study(path, overrides))}


def test_a_size_may_train_some_of_the_models_only(study_file: Callable[..., Path]) -> None:
    large = f"  large:\n    config: {TINY}\n    max_duration: 4\n    models: [long-seed1]\n"
    commands = typed(study_file(("models:\n", f"{large}models:\n")))
    assert {"tiny-short-seed0", "tiny-long-seed1", "large-long-seed1"} <= set(commands)
    assert "large-short-seed0" not in commands
    assert " --checkpoints run/models/large-long-seed1 --results" in commands["loss_differences-large"]
    assert "--short-models" not in commands["run_notebooks-large"]
    assert f" --checkpoints {BOTH} --results" in commands["loss_differences-tiny"]
    for influential in ("[]", "[short-seed0]"):
        with pytest.raises(InputError, match="influential_tokens-.* has no model to measure: name one of "):
            typed(
                study_file(("models:\n", f"{large}models:\n")), f"evaluation.influential_models={influential}"
            )


def test_models_beside_those_that_are_measured_are_needed_too(study_file: Callable[..., Path]) -> None:
    beside = "k: [1, 4]\n  judge_with: [short-seed0]\n  reference_model: long-seed1"
    study = load_study(study_file(("k: [1, 4]", beside), ("models: [long-seed1], steps", "steps")))
    commands = {command.name: command for command in commands_of(study)}
    tried = commands["evaluate_tokens-tiny"]
    assert tried.needs == ("tokenize_c4", "tiny-short-seed0", "influential_tokens-tiny")
    assert " --choices-of tiny-long-seed1 " in str(tried)
    # At an earlier step too, the reference is the model as it was trained to the end.
    along = commands["loss_differences-tiny-along_training"]
    assert str(along).endswith(" --reference-model run/models/tiny-long-seed1")


def test_the_demo_is_what_the_page_says() -> None:
    page = (ROOT / "pipeline" / "README.md").read_text().replace("\\\n", " ")
    names = "short-contiguous", "short-pose", "long-seed0", "long-seed1"
    page = page.replace("runs/demo/models/*", " ".join(f"runs/demo/models/{name}" for name in names))
    shown = [set(line.split()) for line in page.splitlines() if "runs/demo" in line]
    commands = typed(ROOT / "olmo_configs" / "studies" / "demo.yaml")
    assert len(commands) == 13
    for command in commands.values():
        assert set(command.split()) in shown, command
