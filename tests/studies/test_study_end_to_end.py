"""Studies on real stages: of text, of pretrained models by stand-ins, of synthetic tasks."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hugging_face_families import save_model
from measured_documents import json_lines
from omegaconf import OmegaConf
from sparsity_length.programs.study import STAGE
from tiny_task import TINY_TASK

from sparsity_length.cli import InputError
from sparsity_length.models.load import name_of
from sparsity_length.results.read import Results
from sparsity_length.text.tokenizer import train_bpe

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "sizes.tiny.overrides=[save_interval=2,model.d_model=16,model.n_heads=2,model.n_layers=1,"
    "model.max_sequence_length=64,scheduler.t_warmup=2,global_train_batch_tokens=256,"
    "device_train_microbatch_tokens=256,precision=fp32,eval_context_lengths=null]",
    "evaluation.stages=[loss_differences,influential_tokens,summary]",
]


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run study.py in a folder, as it is typed."""
    environment = os.environ | {"TEXT": "text", "HF_HUB_OFFLINE": "1"}
    program = [sys.executable, str(ROOT / "pipeline" / "study.py"), *words]
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


def parquet_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


@pytest.mark.slow
def test_a_study_goes_on_where_a_stage_failed_and_sees_what_changed(study_file: Callable[..., Path]) -> None:
    config = study_file().parent / "tiny.yaml"
    config.write_text((ROOT / "olmo_configs" / "tiny.yaml").read_text())
    study = study_file((str(ROOT / "olmo_configs" / "tiny.yaml"), str(config)))
    folder = study.parent
    of_text = partial(run, folder, study.name, *SMALL)
    (folder / "train.jsonl").write_text(json_lines(0, 40, 80))
    (folder / "evaluation.jsonl").write_text(json.dumps({"text": "too short"}) + "\n")
    failed = of_text()
    assert failed.returncode == 2, failed.stderr
    assert " ended with exit code 2; run the same command again to resume" in failed.stderr
    assert not (folder / "run" / "results" / "tiny" / "loss_differences").exists()

    (folder / "evaluation.jsonl").write_text(json_lines(1, 40, 80))
    refused = of_text()
    assert refused.returncode == 2
    assert "run/data holds data made with other settings: inputs.evaluation source" in refused.stderr
    shutil.rmtree(folder / "run")  # other text is another study
    # Two shards, which two processes measure, and one.
    measure = ["evaluation.max_documents=40"]
    whole = of_text(*measure, "--jobs", "2")
    assert whole.returncode == 0, whole.stderr
    assert "The distant context lowers the loss" in whole.stdout
    assert set(Results(folder / "run" / "results" / "tiny").frame("loss_differences")["model"]) == {
        "tiny-short-seed0",
        "tiny-long-seed1",
    }
    along = Results(folder / "run" / "along_training" / "results" / "tiny").frame("loss_differences")
    assert set(along["model"]) == {"tiny-long-seed1-step2"}
    assert (folder / "run" / "logs" / "loss_differences-tiny-2-of-2.log").is_file()

    # What was removed is measured again, by one process: to the same bytes. A comment changes nothing.
    measured = parquet_files(folder / "run")
    shutil.rmtree(folder / "run" / "along_training")
    shutil.rmtree(folder / "run" / "results")
    config.write_text(config.read_text() + "# a comment\n")
    again = of_text(*measure, "--jobs", "1")
    assert again.returncode == 0, again.stderr
    assert len(re.findall("(?m)^sparsity ", again.stdout)) == 4  # no text, no models
    assert (folder / "run" / "logs" / "loss_differences-tiny.log").is_file()
    assert parquet_files(folder / "run") == measured != {}
    for name in ("train.jsonl", "evaluation.jsonl"):  # text may be put away once it is tokenized
        (folder / name).unlink()
    nothing_left = of_text(*measure, "--jobs", "1")
    assert nothing_left.returncode == 0, nothing_left.stderr
    assert nothing_left.stdout.startswith("sparsity summary ") and again.stdout.endswith(nothing_left.stdout)
    assert parquet_files(folder / "run") == measured

    assert "learning_rate: 6.0e-3" in config.read_text()
    config.write_text(config.read_text().replace("learning_rate: 6.0e-3", "learning_rate: 6.1e-3"))
    refused = of_text(*measure)
    assert refused.returncode == 2
    assert "run/models/tiny-short-seed0 holds a run made with other settings" in refused.stderr
    assert "optimizer.learning_rate was 0.006, now 0.0061" in refused.stderr


STUDIES = ROOT / "olmo_configs" / "studies"
FEW_DOCUMENTS = [
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
    tokenizer = train_bpe(texts, 320).to_json()
    fields = OmegaConf.load(STUDIES / f"{study}.yaml")
    words = [str(model.checkpoint) for model in fields.models.values()]
    for seed, word in enumerate(dict.fromkeys([*words, str(fields.data.tokenizer)])):
        family, further = next(made for start, made in FAMILY_OF.items() if word.startswith(start))
        save_model(folder / word, tokenizer, family, seed, **further)
    return [name_of(word) for word in words]


@pytest.mark.slow
@pytest.mark.parametrize("study", ["polypythias", "smollm3", "pose_llama"])
def test_a_study_of_existing_models_runs_to_its_summary(study: str, tmp_path: Path) -> None:
    names = write_stand_ins(tmp_path, study)
    words = [f"olmo_configs/studies/{study}.yaml", *FEW_DOCUMENTS]
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "The distant context lowers the loss" in done.stdout
    results = tmp_path / "runs" / study / "results"
    assert set(Results(results).frame("loss_differences")["model"]) == set(names)
    evaluators = set(Results(results).frame("sparse_context_losses")["evaluator"]) - {"the same model"}
    assert evaluators and evaluators < set(names)
    again = run(tmp_path, *words)
    assert again.returncode == 0 and "tokenize_c4" not in again.stdout, again.stdout


CONFIG = ROOT / "olmo_configs" / "synthetic" / "small.yaml"
STUDY_OF_TASKS = """
run: run
synthetic:
  config: CONFIG
  grids:
    both: &grid
      tasks: [sparse_parity]
      positions: [pose]
      largest_sparsities: [1, 2]
      seeds: [0, 1]
      overrides: [TINY]
    copies: {<<: *grid, tasks: [copy], positions: [pose, predicted], largest_sparsities: null}
  evaluate_synthetic:
    sparse_parity: {sizes: [10], sparsities: [1], num_examples: 4}
    found: {task: copy, dependencies: true, sizes: [6], largest_k: 4, num_examples: 3}
"""
TINY = [*TINY_TASK, "save_interval=2", "eval_interval=3"]


@pytest.fixture
def of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The study, in a folder of its own, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.yaml"
    path.write_text(STUDY_OF_TASKS.replace("CONFIG", str(CONFIG)).replace("TINY", ", ".join(TINY)))
    return path


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["synthetic.grids.both.positions=[coupled]"], "sparse_parity-k1-coupled-seed0: .* 'coupled'"),
        (["synthetic.grids.both.overrides=[num_step=3]"], "sparse_parity-k1-pose-seed0: .* 'num_steps'"),
        (["synthetic.grids.both=null"], "evaluate_synthetic-sparse_parity: argument --checkpoints: exp"),
        (
            ["synthetic.evaluate_synthetic.addition={sizes: [3]}"],
            "addition: argument --checkpoints: expected at least one",
        ),
        (["synthetic.evaluate_synthetic.copy={grids: [botch], sizes: [3]}"], "did you mean 'both'"),
        (["synthetic.evaluate_synthetic.copy={sizes: [200]}"], "examples of this size need 401 or"),
        (["synthetic.evaluate_synthetic.found.largest_k=0"], "argument --largest-k"),
        (["sythetic={}"], "Key 'sythetic' not in 'Study'"),
    ],
)
def test_what_could_not_run_is_refused_before_it_begins(
    of_tasks: Path, overrides: list[str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        STAGE([str(of_tasks), *overrides])
    assert [found.name for found in of_tasks.parent.iterdir()] == ["study.yaml"]


@pytest.mark.slow
def test_a_whole_study_to_its_figures(of_tasks: Path) -> None:
    one_seed = ["synthetic.grids.both.seeds=[0]", "synthetic.grids.copies.seeds=[0]"]
    words = [of_tasks.name, "synthetic.grids.both.largest_sparsities=[1]", *one_seed]
    whole = run(of_tasks.parent, *words)
    assert whole.returncode == 0, whole.stderr
    results = of_tasks.parent / "run" / "results"
    assert set(Results(results).frame("synthetic_accuracy")["model"]) == {"sparse_parity-k1-pose-seed0"}
    asked = set(Results(results).frame("found_dependencies")["model"])
    assert asked == {"copy-pose-seed0", "copy-predicted-seed0"}
    assert (of_tasks.parent / "run" / "figures" / "synthetic_tasks.ipynb").is_file()
    again = run(of_tasks.parent, *words)
    assert len(re.findall("(?m)^sparsity ", again.stdout)) == 1  # the notebooks, which know by themselves
