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
        ("run: run", "run: ''", r"run is empty; give it a value"),
        ("max_documents: 6", "max_documents: 0", r"evaluation.max_documents has 0; it must be at least 1"),
        (
            "max_documents: 3",
            "max_documents: -3",
            r"along_training.max_documents has -3; it must be at least 1",
        ),
        ("k: [1, 4]", "k: []", r"evaluation.k is empty"),
        ("k: [1, 4]", "k: [1, 0]", r"evaluation.k has 0"),
        ("rules: [leave_one_out, nearest]", "rules: ['']", r"evaluation.rules has an empty entry"),
        ("k: [1, 4]", "judge_with: [long-seed7]", r"unknown model of an evaluation 'long-seed7'"),
        ("k: [1, 4]", "reference_model: long-seed7", r"unknown model of an evaluation 'long-seed7'"),
        ("max_duration: 4,", "models: [long-seed7],", r"unknown model of sizes.tiny 'long-seed7'"),
        (
            "max_duration: 4,",
            "models: [short-seed0],",
            r"influential_models names long-seed1, of which sizes.tiny.models has none",
        ),
        ("k: [1, 4]", "num_backgrounds: 0", r"evaluation.num_backgrounds has 0; it must be at least 1"),
        ("steps: [2]", "steps: [2, -1]", r"steps has -1"),
        (
            "train_context_length: 16",
            "train_context_length: 0",
            r"models.short-seed0.train_context_length has 0",
        ),
        ("seed: 1", "seed: -1", r"models.long-seed1.seed has -1; it must be at least 0"),
        ("data: {", "data: {evaluation_fraction: .nan, ", r"data.evaluation_fraction has nan"),
        ("data: {", "data: {evaluation_fraction: 1.5, ", r"evaluation_fraction is 1.5; it is a share"),
        ("data: {", "data: {max_tokens: 1.5e99, ", r"max_tokens"),
        ("along_training:", "models:", r"an evaluation cannot be named models"),
        (
            "along_training:",
            "'../up':",
            r"further_evaluations has the name '../up', which becomes a folder's",
        ),
        ("  tiny: {", "  a=b: {", r"sizes has the name 'a=b', which becomes a folder's"),
        ("run: run", "run: ${run", r"study.yaml: "),
        ("run: run", "run: ${run}", r"study.yaml: .*[Rr]ecursi"),
        ("run: run", "run: {a: 1}", r"study.yaml: .*\(run\)"),
        ("run: run", "run: run\nmodels: 3", r"study.yaml"),
        ("run: run", "run: run\nslurm: {measure: many}", r"slurm.measure"),
        ("run: run", "run: run\nfurther_evaluations: [1]", r"study.yaml"),
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
    for content in (b"", b"\x00\xff\xfe", b"\xff" * 50, b"a: &a [*a]", b"run: 3\nrun: 4", b"- 1\n- {"):
        (tmp_path / "odd.yaml").write_bytes(content)
        with pytest.raises(InputError):
            load_study(tmp_path / "odd.yaml")
    with pytest.raises(InputError, match="Is a directory"):
        load_study(tmp_path)


@pytest.mark.parametrize(
    "override",
    ["k=[1", "=3", "sizes=3", "sizes.tiny=3", "data=null", "evaluation=1"],
)
def test_a_bad_override_is_refused_in_a_sentence(study_file: StudyFile, override: str) -> None:
    with pytest.raises(InputError) as refused:
        load_study(study_file(), [override])
    assert "study.yaml" in str(refused.value)


def test_an_evaluation_that_is_null_is_left_out(study_file: StudyFile) -> None:
    study = load_study(study_file(), ["further_evaluations.along_training=null"])
    assert list(study.evaluations) == [""]


def test_files_by_pattern_and_those_that_are_nice_to_have(study_file: StudyFile, tmp_path: Path) -> None:
    (tmp_path / "c4-extra-1.json.gz").touch()
    patterns = [str(tmp_path / f"c4-{kind}*.json*") for kind in ("extra", "other")]
    study = load_study(study_file(), [f"data.further_source=[{','.join(patterns)}]"])
    assert (study.data.source, study.data.further_source) == (["train.jsonl", patterns[0]], None)


def test_a_configuration_is_found_from_any_folder(
    study_file: StudyFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config_of(name: str, path: Path) -> str:
        return load_study(path, [f"sizes.tiny.config={name}"]).sizes["tiny"].config

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    path = study_file()
    assert config_of("olmo_configs/tiny.yaml", path) == str(ROOT / "olmo_configs" / "tiny.yaml")
    (tmp_path / "own.yaml").touch()
    assert config_of("own.yaml", path) == str(tmp_path / "own.yaml")
    (elsewhere / "own.yaml").touch()
    assert config_of("own.yaml", path) == "own.yaml"
    assert load_study(Path("olmo_configs/studies/demo.yaml")).run == "runs/demo"


@pytest.mark.parametrize("field", ["judge_with: [short-seed0]", "reference_model: short-seed0"])
def test_a_size_that_leaves_out_a_model_that_is_needed_is_refused(study_file: StudyFile, field: str) -> None:
    path = study_file(("max_duration: 4,", "models: [long-seed1],"), ("k: [1, 4]", field))
    sentence = (
        "names short-seed0, which sizes.tiny.models leaves out; add it there, or name one of long-seed1"
    )
    with pytest.raises(InputError, match=sentence):
        load_study(path)


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
    assert load_study(path, ["text_folder=/c4"]).data.source == ["/c4/c4-train*.json*"]
    monkeypatch.setenv("C4", "")
    with pytest.raises(InputError, match="the environment variable C4, which is empty"):
        load_study(path)
    monkeypatch.setenv("C4", "/elsewhere")
    assert load_study(path).data.evaluation_source == ["/elsewhere/c4-validation*.json*"]
    with pytest.raises(InputError, match="override 'run' has no '='"):
        load_study(path, ["run"])
