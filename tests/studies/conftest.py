"""A study small enough to be written out by hand."""

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUDY = """
run: run
data: {source: [train.jsonl], evaluation_source: [evaluation.jsonl], tokenizer: "bpe:300"}
sizes:
  tiny: {config: CONFIG, max_duration: 4, overrides: [save_interval=2, scheduler.t_warmup=2]}
models:
  short-seed0: {train_context_length: 16, position_scheme: pose, pose_target_length: 64}
  long-seed1: {train_context_length: 64, seed: 1}
evaluation:
  stages: [loss_differences, length_losses, influential_tokens, run_notebooks, summary]
  influential_tokens: {models: [long-seed1]}
  short_context_length: 8
  long_context_length: 64
  targets_per_chunk: 4
  max_documents: 6
  max_chunks_per_document: 1
  rules: [leave_one_out, recency]
  k: [1, 4]
further_evaluations:
  along_training: {stages: [loss_differences], models: [long-seed1], steps: [2], max_documents: 3}
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Callable[..., Path]:
    """A function writing the study, parts of it replaced, in a folder of its own, and two texts beside it."""

    def write(*replaced: tuple[str, str]) -> Path:
        for name in ("train.jsonl", "evaluation.jsonl"):
            (tmp_path / name).write_text('{"text": "a few words"}\n')
        text = STUDY.replace("CONFIG", str(ROOT / "olmo_configs" / "tiny.yaml"))
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "study.yaml"
        path.write_text(text)
        return path

    return write
