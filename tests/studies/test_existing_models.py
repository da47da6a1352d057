"""Studies of pretrained models, by stand-ins of the same architecture and names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hugging_face_families import make_model
from measured_documents import json_lines
from omegaconf import OmegaConf

from sparsity_length.models.load import name_of
from sparsity_length.results.read import Results
from sparsity_length.text.tokenizer import train_bpe

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
    assert "The distant context lowers the loss" in done.stdout
    results = tmp_path / "runs" / study / "results"
    assert set(Results(results).frame("loss_differences")["model"]) == set(names)
    evaluators = set(Results(results).frame("sparse_context_losses")["evaluator"]) - {"the same model"}
    assert evaluators and evaluators < set(names)
    again = run(tmp_path, study)
    assert again.returncode == 0 and "tokenize_c4" not in again.stdout, again.stdout
