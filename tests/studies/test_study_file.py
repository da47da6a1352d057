"""Study files: what is refused, in which words, and what is inherited and overridden."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.studies.file import load_study

ROOT = Path(__file__).resolve().parents[2]
StudyFile = Callable[..., Path]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("run: run", "runs: run", r"study.yaml: runs: Key 'runs' not in 'TextStudy'"),
        ("seed: 1", "sead: 1", r"models.long-seed1.sead: Key 'sead' not in 'Model'"),
        ("run: run", "", r"mandatory value: run"),
        ("run: run", "run: ${oc.env:NOWHERE_SET}", r"run: .*variable 'NOWHERE_SET' not found"),
        ("run: run", "run: ''", r"run must name a folder"),
        ("run: run", "run: run\nthreads: 0", r"threads be at least 1"),
        ("run: run", "run: ${run}", r"study.yaml: .*[Rr]ecursi"),
        ("along_training:", "models:", r"further_evaluations has the name 'models'"),
        ("along_training:", "'../up':", r"further_evaluations has the name '../up', which becomes a"),
        ("stages: [loss_differences]", "stages: [loss_diferences]", r"did you mean 'loss_differences'"),
        ("max_duration: 4,", "models: [long-seed7],", r"unknown model of sizes.tiny 'long-seed7'"),
        (
            "sizes:\n",
            "sizes_in_names: false\nsizes:\n  small: {config: small.yaml}\n",
            r"models of several sizes would share",
        ),
    ],
)
def test_a_bad_file_is_refused_in_a_sentence(
    study_file: StudyFile, old: str, new: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        load_study(study_file((old, new)))


def test_no_file_and_odd_overrides_are_refused(study_file: StudyFile, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no study file .*; there are some in olmo_configs/studies/"):
        load_study(tmp_path / "none.yaml")
    for override in ("k=[1", "sizes.tiny=3", "data=null"):
        with pytest.raises(InputError, match=r"study\.yaml|override '"):
            load_study(study_file(), [override])


def test_a_size_that_leaves_out_a_model_that_all_are_compared_with_is_refused(study_file: StudyFile) -> None:
    for field in ("judge_with: [short-seed0]", "reference_model: short-seed0"):
        path = study_file(("max_duration: 4,", "models: [long-seed1],"), ("k: [1, 4]", field))
        with pytest.raises(InputError, match="unknown model of sizes.tiny for .* 'short-seed0'"):
            load_study(path)


def test_files_by_pattern_and_those_that_are_nice_to_have(study_file: StudyFile, tmp_path: Path) -> None:
    (tmp_path / "c4-extra-1.json.gz").touch()
    patterns = [str(tmp_path / f"c4-{kind}*.json*") for kind in ("extra", "other")]
    study = load_study(study_file(), [f"data.further_source=[{','.join(patterns)}]"])
    assert (study.data.source, study.data.further_source) == (["train.jsonl", patterns[0]], None)


def test_a_further_evaluation_inherits_what_it_does_not_say(study_file: StudyFile) -> None:
    study = load_study(
        study_file(), ["evaluation.k=[2]", "further_evaluations.along_training.dtype=bfloat16"]
    )
    further = study.evaluations["along_training"]
    assert (further.short_context_length, further.rules, further.k) == (8, ["leave_one_out", "nearest"], [2])
    assert (further.max_documents, further.steps, further.dtype) == (3, [2], "bfloat16")
    assert (study.evaluation.max_documents, study.evaluation.steps, study.evaluation.dtype) == (6, None, None)
    without = load_study(study_file(), ["further_evaluations.along_training=null"])
    assert list(without.evaluations) == [""]
