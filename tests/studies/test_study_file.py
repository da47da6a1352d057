"""Study files: what is refused, in which words, and what is inherited and overridden."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.studies.study_file import load_study

ROOT = Path(__file__).resolve().parents[2]
StudyFile = Callable[..., Path]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("run: run", "runs: run", r"unknown field of \S+study.yaml 'runs'; did you mean 'run'\?"),
        ("seed: 1", "sead: 1", r"'models.long-seed1.sead'; did you mean 'models.long-seed1.seed'"),
        ("k: [1, 4]", "K: [1, 4]", r"unknown field of \S+ 'evaluation.K'"),
        (
            "max_documents: 3",
            "max_document: 3",
            r"'further_evaluations.along_training.max_document'; did you",
        ),
        ("run: run", "", r"mandatory value: run"),
        ("long_context_length: 64\n  targets", "targets", r"mandatory value: long_context_length"),
        ("targets_per_chunk: 4", "targets_per_chunk: many", r"'many'.*\(evaluation.targets_per_chunk\)"),
        (
            "run: run",
            "run: ${oc.env:NOWHERE_SET}",
            r"takes run from .* NOWHERE_SET, which is not set: .*run=F",
        ),
        ("stages: [loss_differences]", "stages: [loss_diferences]", r"did you mean 'loss_differences'"),
        ("influential_models: [long-seed1]", "influential_models: [long]", r"did you mean 'long-seed1'"),
        ("  influential_models: [long-seed1]\n", "", r"influential_models names no model .* long-seed1"),
        ("run: run", "- run", r"not a readable YAML file"),
    ],
)
def test_a_bad_file_is_refused_in_a_sentence(
    study_file: StudyFile, old: str, new: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        load_study(study_file((old, new)))


def test_no_file_and_no_fields_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no study file .*; there are some in olmo_configs/studies/"):
        load_study(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(InputError, match="does not hold the fields of a study"):
        load_study(tmp_path / "list.yaml")


def test_sizes_must_not_share_the_names_of_their_models(study_file: StudyFile) -> None:
    path = study_file(("  tiny:", "  small: {config: small.yaml}\n  tiny:"))
    assert list(load_study(path).sizes) == ["small", "tiny"]
    with pytest.raises(InputError, match="the sizes small, tiny would share their names"):
        load_study(path, ["sizes_in_names=false"])


def test_a_further_evaluation_inherits_what_it_does_not_say(study_file: StudyFile) -> None:
    study = load_study(
        study_file(), ["evaluation.k=[2]", "further_evaluations.along_training.dtype=bfloat16"]
    )
    further = study.evaluations["along_training"]
    assert (further.short_context_length, further.rules, further.k) == (8, ["leave_one_out", "nearest"], [2])
    assert (further.max_documents, further.steps, further.dtype) == (3, [2], "bfloat16")
    assert (study.evaluation.max_documents, study.evaluation.steps, study.evaluation.dtype) == (6, None, None)


def test_an_override_wins_before_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("C4", raising=False)
    path = ROOT / "olmo_configs" / "studies" / "reference.yaml"
    with pytest.raises(
        InputError, match="takes text_folder from the environment variable C4, which is not set"
    ):
        load_study(path)
    assert load_study(path, ["text_folder=/c4"]).data.source[0] == "/c4/c4-train.jsonl.gz"
    monkeypatch.setenv("C4", "/elsewhere")
    assert load_study(path).data.evaluation_source == ["/elsewhere/c4-validation.jsonl.gz"]
    with pytest.raises(InputError, match="override 'run' has no '='"):
        load_study(path, ["run"])
