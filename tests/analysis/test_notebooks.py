"""The notebooks, executed end to end on the synthetic results."""

import os
import shutil
import subprocess
from pathlib import Path

import forked_stages
import nbformat
import pytest

from analysis.notebooks import code_used_by, fingerprint, with_parameters
from pipeline.results.files import FolderLock

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "analysis" / "notebooks").glob("*.ipynb"))
FIGURES = {
    "dependency_sparsity",
    "gap_slopes",
    "generalization_gap_by_sparsity",
    "loss_against_context_length",
    "long_perplexity",
    *(f"recovered_loss_against_k-{model}" for model in ("long-seed0", "long-seed1", "short-contiguous")),
    *(f"token_effects-{model}" for model in ("long-seed0", "long-seed1", "short-contiguous")),
    *(
        f"token_effects-{model}-by-another-model"
        for model in ("long-seed0", "long-seed1", "short-contiguous")
    ),
}


def run(results: Path, figures: Path, cwd: Path, *further: str) -> subprocess.CompletedProcess[str]:
    words = [
        "--results", results, "--figures", figures,
        "--long-models", "long-seed0", "long-seed1", "--short-models", "short-contiguous", "short-pose",
        "--train-context-lengths", "short-contiguous=32", "short-pose=32", "long-seed0=256", "long-seed1=256",
        *further,
    ]  # fmt: skip
    return forked_stages.run("analysis/run_notebooks.py", *words, cwd=cwd)


def test_all_notebooks_run_from_any_directory_and_only_once(results: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    # Relative to where it is typed, which is not where a kernel runs.
    done = run(Path(os.path.relpath(results, tmp_path)), Path("figures"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (ROOT / "figures").exists()
    for suffix in ("png", "pdf"):
        assert {path.stem for path in figures.glob(f"*.{suffix}")} == FIGURES
    # One rule beside the controls, one size, no text: nothing to compare or read. No needles, no fits.
    skipped = {"selection_rules", "model_scale", "sparse_functional_attention", "synthetic_tasks"}
    skipped |= {"token_categories", "influential_places", "needles", "found_dependencies"}
    executed = {path.name for path in NOTEBOOKS if path.stem not in skipped}
    assert "synthetic_tasks.ipynb: the results hold no 'synthetic_accuracy'; they hold" in done.stderr
    assert "model_scale.ipynb: the results tell of only one model size and training step" in done.stderr
    assert "influential_places.ipynb: no tokenized data beside the results" in done.stderr
    assert "needles.ipynb: no planted needles" in done.stderr
    assert "selection_rules.ipynb: only one selection rule beside the controls, skipped" in done.stderr
    assert {path.name for path in figures.glob("*.ipynb")} == executed
    text = "".join(path.read_text() for path in figures.glob("*.ipynb"))
    assert "long-seed0: the long context helps" in text
    assert "long-seed0: shared windows make the short loss 0.1250 [0.1250, 0.1250] nats smaller" in text
    assert "short-contiguous: the long context makes no clear difference" in text
    assert "short-pose, k* by leave_one_out (n = " in text
    assert "The training tokens are not at hand" in text
    assert "k* by leave_one_out beyond its null: of " in text
    for path in figures.glob("*.ipynb"):
        assert "intervals of 95 % each" in path.read_text(), f"{path.name} has no multiple-comparison note"

    before = {path: path.stat().st_mtime_ns for path in figures.iterdir()}
    again = run(results, figures, tmp_path)
    assert again.stderr.count("nothing has changed, skipped") == len(executed)
    assert {path: path.stat().st_mtime_ns for path in figures.iterdir()} == before


def test_skips_only_what_has_not_changed(results: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(results, tmp_path / "results")
    figures = tmp_path / "results" / "figures"

    def made_from(notebook: Path = NOTEBOOKS[0], **parameters: object) -> str:
        return fingerprint(copy, notebook, {"a": 1} | parameters, figures)

    before = made_from()
    figures.mkdir()
    (figures / "a.png").touch()  # what it makes
    (copy / ".a.done.part").touch()
    assert made_from() == before
    assert made_from(a=2) != before
    assert made_from(NOTEBOOKS[1]) != before
    mark = next((copy / "_stages").rglob("*.done"))
    mark.write_text(mark.read_text() + " ")
    without_settings = made_from()
    assert without_settings != before
    next(copy.glob("*/model=long-seed0/*.parquet")).unlink()
    assert made_from() != without_settings


def test_the_data_beside_the_results_decides_for_notebooks_that_read_it(
    results: Path, tmp_path: Path
) -> None:
    copy, data = shutil.copytree(results, tmp_path / "results"), tmp_path / "data"
    of_text, of_losses = (ROOT / "analysis/notebooks" / f"{name}.ipynb"
                          for name in ("influential_places", "loss_differences"))  # fmt: skip

    def made_from(**parameters: object) -> list[str]:
        return [fingerprint(copy, notebook, parameters, tmp_path / "f") for notebook in (of_text, of_losses)]

    without = made_from()
    data.mkdir()
    (data / "manifest.json").write_text("{}")
    beside = made_from()
    assert [old == new for old, new in zip(without, beside, strict=True)] == [False, True]
    (data / "manifest.json").write_text("{ }")
    assert made_from()[0] != beside[0]
    data.rename(tmp_path / "elsewhere")
    elsewhere = made_from(data=str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere" / "tokenizer.json").write_text("{}")
    assert made_from(data=str(tmp_path / "elsewhere"))[0] != elsewhere[0]


def test_code_that_a_notebook_uses_is_found_wherever_it_lies_and_no_other() -> None:
    def used(name: str) -> tuple[set[str], set[str]]:
        code, libraries = code_used_by(ROOT / "analysis" / "notebooks" / f"{name}.ipynb")
        return {path.relative_to(ROOT).as_posix() for path in code}, set(libraries)

    code, libraries = used("loss_differences")
    assert {"analysis/drawing.py", "analysis/losses/losses.py", "pipeline/results/statistics.py"} <= code
    assert {"analysis/__init__.py", "pipeline/cli.py"} <= code
    assert {"numpy", "pandas", "matplotlib"} <= libraries
    assert not {"sys", "pathlib", "analysis", "pipeline"} & libraries
    assert not any(path.startswith(("analysis/tokens/", "pipeline/text/")) for path in code)
    assert "analysis/summary.py" not in code
    code, libraries = used("token_categories")
    assert {"analysis/read.py", "pipeline/text/chunks.py"} <= code  # outside of analysis/
    assert "HanTa" in libraries  # imported in a function, and perhaps not installed


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, tmp_path / "figures", tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"--results {tmp_path} holds no results" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "figures").exists()


def test_losses_alone_are_shown_and_a_notebook_asked_for_by_name_lacks_nothing(
    results: Path, tmp_path: Path
) -> None:
    """As of the novels in the reference study, of which no influential tokens are measured."""
    losses = tmp_path / "results"
    for artefact in ("loss_differences", "length_losses"):
        shutil.copytree(results / artefact, losses / artefact)
        shutil.copytree(results / "_stages" / artefact, losses / "_stages" / artefact)
    done = run(losses, tmp_path / "figures", tmp_path, "--data", str(tmp_path))
    assert done.returncode == 0, done.stderr
    present = "they hold loss_differences, length_losses"
    for name, artefact in (
        ("dependency_sparsity", "dependency_sparsity"),
        ("sparsity_and_generalization", "dependency_sparsity"),
        ("selection_rules", "sparse_context_losses"),
        ("token_categories", "sparse_context_losses"),
        ("influential_places", "influential_tokens"),
    ):
        assert f"{name}.ipynb: the results hold no '{artefact}'; {present}, skipped" in done.stderr
    executed = {path.stem for path in (tmp_path / "figures").glob("*.ipynb")}
    assert executed == {"length_losses", "loss_differences", "long_perplexity"}

    asked = run(losses, tmp_path / "figures", tmp_path, "--notebooks", "dependency_sparsity")
    assert asked.returncode == 2
    assert f"dependency_sparsity.ipynb: the results hold no 'dependency_sparsity'; {present}" in asked.stderr


def test_an_output_that_is_a_file_or_in_use_is_refused(results: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for figures in (tmp_path / "file", tmp_path / "file" / "figures"):
        done = run(results, figures, tmp_path, "--notebooks", "loss_differences")
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr
    with FolderLock(tmp_path / "figures", "--figures"):
        done = run(results, tmp_path / "figures", tmp_path, "--notebooks", "loss_differences")
    assert done.returncode == 2
    assert "is in use by process" in done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_thin_and_hold_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in notebook.cells) == 1
    for cell in notebook.cells:
        assert len(cell.source.splitlines()) <= 20
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
            assert "read_parquet" not in cell.source


def test_injected_parameters_follow_the_defaults() -> None:
    notebook = with_parameters(nbformat.read(NOTEBOOKS[0], as_version=4), {"results": "/r"})
    place = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    assert notebook.cells[place + 1].source == "results = '/r'"
