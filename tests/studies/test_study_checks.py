"""What study.py asks the programs before it runs them: what they would refuse."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sparsity_length.programs.study import STAGE

from sparsity_length.cli import InputError, stage_of
from sparsity_length.studies.commands import commands_of
from sparsity_length.studies.file import load_study

StudyFile = Callable[..., Path]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["evaluation.short_context_length=64"], "loss_differences-tiny: the short context .* no distant"),
        (["evaluation.k=[53]"], "k 53 is more than the 52 distant tokens of the first"),
        (["evaluation.rules=[leave_one_aut]"], "did you mean 'leave_one_out'"),
        (["models.long-seed1.train_context_length=512"], "at most model.max_sequence_length, 256"),
        (["sizes.tiny.config=none.yaml"], "tiny-short-seed0: no configuration file none.yaml"),
        # The fixture trains four steps; without its own override the warm-up is that of tiny.yaml, 100.
        (["sizes.tiny.overrides=[save_interval=2]"], "tiny-short-seed0: scheduler.t_warmup is 100 steps"),
        (["further_evaluations.along_training.steps=[3]"], "step 3 is to be measured, but .* every 2 "),
        (["data.tokenizer=none.json"], "there is no tokenizer none.json"),
        (["data.source=[nowhere.jsonl]"], "tokenize_c4: cannot read nowhere.jsonl: No such file"),
        (
            ["evaluation.max_documnets=3"],
            "field of an evaluation 'max_documnets'; did you mean 'max_documents'",
        ),
        (["evaluation.run_notebooks={long_modles: [x]}"], "unrecognized arguments: --long-modles"),
        (["evaluation.models=[long]"], "did you mean 'long-seed1'"),
        (
            ["further_evaluations.chosen={stages: [evaluate_tokens]}"],
            "that evaluate_tokens-tiny-chosen needs: 'influential_tokens-tiny-chosen'; did you mean",
        ),
    ],
)
def test_what_could_not_run_to_its_end_is_refused_before_it_begins(
    study_file: StudyFile, overrides: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = study_file()
    monkeypatch.chdir(path.parent)
    with pytest.raises(InputError, match=sentence):
        STAGE([str(path), *overrides])
    assert {found.name for found in path.parent.iterdir()} == {path.name, "train.jsonl", "evaluation.jsonl"}


def test_needles_are_planted_in_the_text_and_measured_in_its_place() -> None:
    commands = {one.name: one for one in commands_of(load_study(Path("olmo_configs/studies/reach.yaml")))}
    for name, folder in (("", "runs/reach"), ("-yarn", "runs/reach/yarn")):
        planting = commands[f"plant_needles{name}"]
        measuring = commands[f"length_interference{name}"]
        assert planting.needs == ("tokenize_c4",) and measuring.needs == (planting.name,)
        assert planting.arguments[:4] == ["--data", "runs/reach/data", "--out", f"{folder}/needles"]
        assert measuring.arguments[:2] == ["--data", f"{folder}/needles/length-64/data"]
        assert (
            ("--rope", "yarn:2") in zip(measuring.arguments, measuring.arguments[1:], strict=False)
        ) == bool(name)


def test_our_configurations_are_found_in_any_folder_and_those_of_the_folder_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = commands_of(load_study(Path("olmo_configs/studies/demo.yaml")))
    (command,) = (one for one in commands if one.name == "long-seed0")
    stage = stage_of("pretrain")
    assert stage.settings(stage.parse(command.arguments), []).train_context_length == 128
    (tmp_path / "olmo_configs").mkdir()
    (tmp_path / "olmo_configs" / "demo.yaml").write_text("max_duration: 3\nno_such_field: 1\n")
    with pytest.raises(InputError, match="no_such_field"):
        stage.settings(stage.parse(command.arguments), [])
