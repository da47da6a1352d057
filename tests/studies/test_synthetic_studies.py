"""Studies of synthetic tasks: what is refused, what runs."""

import re
import subprocess
from pathlib import Path

import forked_stages
import pytest
from sparsity_length.programs.study import STAGE
from tiny_task import TINY_TASK

from sparsity_length.cli import InputError
from sparsity_length.results.read import Results

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "olmo_configs" / "synthetic" / "small.yaml"
STUDY = """
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
def study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The study, in a folder of its own, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.replace("CONFIG", str(CONFIG)).replace("TINY", ", ".join(TINY)))
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
    study_file: Path, overrides: list[str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        STAGE([str(study_file), *overrides])
    assert [found.name for found in study_file.parent.iterdir()] == ["study.yaml"]


def run(path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return forked_stages.run("pipeline/study.py", path.name, *words, cwd=path.parent)


@pytest.mark.slow
def test_a_whole_study_to_its_figures(study_file: Path) -> None:
    one_seed = ["synthetic.grids.both.seeds=[0]", "synthetic.grids.copies.seeds=[0]"]
    whole = run(study_file, "synthetic.grids.both.largest_sparsities=[1]", *one_seed)
    assert whole.returncode == 0, whole.stderr
    results = study_file.parent / "run" / "results"
    assert set(Results(results).frame("synthetic_accuracy")["model"]) == {"sparse_parity-k1-pose-seed0"}
    asked = set(Results(results).frame("found_dependencies")["model"])
    assert asked == {"copy-pose-seed0", "copy-predicted-seed0"}
    assert (study_file.parent / "run" / "figures" / "synthetic_tasks.ipynb").is_file()
    again = run(study_file, "synthetic.grids.both.largest_sparsities=[1]", *one_seed)
    assert len(re.findall("(?m)^sparsity ", again.stdout)) == 1  # the notebooks, which know by themselves
