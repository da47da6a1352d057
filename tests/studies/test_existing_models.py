"""Studies of pretrained models, by stand-ins of the same architecture and names; what they refuse."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hugging_face_families import make_model
from measured_documents import LENGTH_LOSSES, json_lines, measure, write_data
from omegaconf import OmegaConf

from pipeline import loss_differences
from pipeline.cli import InputError
from pipeline.models import load
from pipeline.models.load import find_model, name_of
from pipeline.results.read import read_artefact
from pipeline.studies.commands import commands_of
from pipeline.studies.file import load_study
from pipeline.text.tokenizer import parse_tokenizer_name, train_bpe

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "olmo_configs" / "studies"
SMALL = [
    "data.source=[train.json]",
    *(
        f"evaluation.{field}"
        for field in (
            "short_context_length=8",
            "long_context_length=48",
            "targets_per_chunk=4",
            "max_documents=8",
            "k=[1,4]",
            "null_fraction=1",
            "dtype=float32",
        )
    ),
]
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


def write_stand_ins(folder: Path, study: str) -> list[str]:
    """Tiny random models in folders of the study's own words, each with one tokenizer; the models' names."""
    (folder / "text").mkdir()
    (folder / "train.json").write_text(json_lines(1, 4, 60))
    (folder / "text" / "a.json").write_text(json_lines(0, 12, 120))
    texts = [json.loads(line)["text"] for line in (folder / "text" / "a.json").read_text().splitlines()]
    tokenizer = train_bpe(texts, 320)
    fields = OmegaConf.load(STUDIES / f"{study}.yaml")
    words = [str(model.checkpoint) for model in fields.models.values()]
    for seed, word in enumerate(dict.fromkeys([*words, str(fields.data.tokenizer)])):
        family, further = next(made for start, made in FAMILY_OF.items() if word.startswith(start))
        model = make_model(family, seed, vocab_size=tokenizer.vocabulary_size, **further)
        model.save_pretrained(folder / word)
        (folder / word / "tokenizer.json").write_text(tokenizer.to_json())
    return [name_of(word) for word in words]


def run(folder: Path, study: str, *overrides: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, str(ROOT / "pipeline" / "study.py"), f"olmo_configs/studies/{study}.yaml"]
    environment = {**os.environ, "TEXT": "text", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [*words, *SMALL, *overrides], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )


@pytest.mark.slow
@pytest.mark.parametrize("study", ["polypythias", "smollm3", "pose_llama"])
def test_a_study_of_existing_models_runs_to_its_summary(study: str, tmp_path: Path) -> None:
    names = write_stand_ins(tmp_path, study)
    done = run(tmp_path, study)
    assert done.returncode == 0, done.stderr
    assert "The far context is worth" in done.stdout
    results = tmp_path / "runs" / study / "results"
    assert set(read_artefact(results, "loss_differences")["model"]) == set(names)
    judges = set(read_artefact(results, "sparse_context_losses")["judge"]) - {"the same model"}
    assert judges and judges < set(names)
    again = run(tmp_path, study)
    assert again.returncode == 0 and "influential_tokens.py" not in again.stdout, again.stdout


@pytest.mark.slow
def test_a_model_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    write_stand_ins(tmp_path, "pose_llama")
    other = train_bpe(["other words, other tokens"] * 40, 320).to_json()
    (tmp_path / "dwzhu" / "LLaMA2-7B-PoSE-YaRN-16k" / "tokenizer.json").write_text(other)
    done = run(tmp_path, "pose_llama")
    assert done.returncode == 2
    assert "is another tokenizer than that of dwzhu/LLaMA2-7B-PoSE-YaRN-16k" in done.stderr


def test_names_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXT", "text")
    study = load_study(STUDIES / "smollm3.yaml")
    commands = {command.name: command for command in commands_of(study)}
    shown = str(commands["run_notebooks"])
    assert "--long-models SmolLM3-3B-checkpoints-lc-32k-to-64k-step-20000 --short-models" in shown
    assert "SmolLM3-3B-checkpoints-stage3-step-4720000=4096" in shown
    assert commands["loss_differences"].needs == ("tokenize_c4",)


def test_two_models_of_the_hub_of_one_last_name_are_filed_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "run: r\ndata: {source: [embedded], tokenizer: olmo}\n"
        "models: {a: {checkpoint: org-a/m, train_context_length: 8},"
        " b: {checkpoint: org-b/m, train_context_length: 4},"
        " c: {checkpoint: org-b/n, train_context_length: 4}}\n"
        "evaluation: {short_context_length: 2, long_context_length: 8, influential_models: [a]}\n"
    )
    commands = {command.name: command for command in commands_of(load_study(path))}
    shown = str(commands["run_notebooks"])
    assert "--long-models org-a--m --short-models org-b--m n " in shown
    # A stage that measures one of them alone calls it so too.
    assert " --among org-a/m org-b/m" in str(commands["influential_tokens"])
    write_data(tmp_path / "data")
    make_model("llama").save_pretrained(tmp_path)
    monkeypatch.setattr(load, "snapshot", lambda *_: tmp_path)
    results = measure(
        loss_differences,
        tmp_path,
        "--checkpoints",
        "org-a/m",
        "--among",
        "org-a/m",
        "org-b/m",
        *LENGTH_LOSSES,
    )
    assert set(read_artefact(results, "length_losses")["model"]) == {"org-a--m"}


def test_words_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert name_of("a/b@main") == "b-main" and name_of("a/b", "refs/pr/1") == "b-refs-pr-1"
    make_model("llama").save_pretrained("a/b@main")
    assert find_model("a/b@main").name == "b-main"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="the hub gives none"):
        parse_tokenizer_name("x/y@v1")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            "models: {a: {checkpoint: x/y, train_context_length: 8}, b: {train_context_length: 8}}",
            "a checkpoint have a",
        ),
        ("models: {b: {train_context_length: 8}}", "a checkpoint have none"),
        (
            "sizes: {s: {config: olmo_configs/tiny.yaml}}\n"
            "models: {a: {checkpoint: x/y, train_context_length: 8}}",
            "every model has a `checkpoint` and there are no sizes",
        ),
        (
            "models: {a: {checkpoint: x/y, train_context_length: 8}}\nfurther_evaluations: {b: {steps: [1]}}",
            "have no `steps`",
        ),
    ],
)
def test_trained_and_existing_models_do_not_mix(fields: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        f"run: r\ndata: {{source: [embedded], tokenizer: olmo}}\n{fields}\n"
        "evaluation: {short_context_length: 2, long_context_length: 8}\n"
    )
    with pytest.raises(InputError, match=sentence):
        load_study(path)
