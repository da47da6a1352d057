"""The report on a GPU runs to its end on a CPU, in its small form, and tells what was not reached."""

import json
from pathlib import Path

import gpu_report
import pytest

from pipeline.results.read import read_artefact

WORDS = ["gpu_report.py", "--device", "cpu", "--toy", "--hours", "1", "--out"]


@pytest.mark.slow
def test_the_small_form_runs_to_its_end_and_does_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    arguments = gpu_report.parser().parse_args([*WORDS[1:], str(tmp_path / "gpu")])
    gpu_report.main(arguments)
    text = (tmp_path / "gpu" / "report.md").read_text()
    assert capsys.readouterr().out == text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    parts = [row[0].removeprefix("| ") for row in rows]
    assert list(dict.fromkeys(parts)) == ["tests", "benchmark", "demo", "study"]
    by_part = {part: row for part, row in zip(parts, rows, strict=True)}
    assert "skipped" in by_part["tests"][1] and by_part["tests"][2] == "no"  # nothing is proven without a GPU
    assert by_part["demo"][2] == "yes" and "of 2,304" in by_part["demo"][1]
    files = {path: path.read_bytes() for path in (tmp_path / "gpu").glob("*.json")}
    (tmp_path / "gpu" / "study.json").unlink()  # as after a stop: the parts before it are whole
    gpu_report.main(arguments)
    assert {path: path.read_bytes() for path in files if path.name != "study.json"} == {
        path: text for path, text in files.items() if path.name != "study.json"
    }
    demo = tmp_path / "gpu" / "demo" / "results"
    found = gpu_report.compared(demo, tmp_path / "gpu" / "demo_on_cpu" / "results", "loss_differences")
    assert found["has_passed"] and found["rows"] == len(read_artefact(demo, "loss_differences"))


def test_a_difference_beyond_the_tolerance_and_missing_rows_do_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    rows = pd.DataFrame(
        {"model": "m", "document_id": "d", "target_position": range(200), "long_context_loss": 1.0}
    )
    other = rows.copy()
    tables = {tmp_path / "a": rows, tmp_path / "b": other}
    monkeypatch.setattr(gpu_report, "read_artefact", lambda folder, artefact, columns: tables[folder])

    def passes() -> bool:
        return bool(gpu_report.compared(*tables, "loss_differences")["has_passed"])

    assert passes()
    other.loc[7, "long_context_loss"] += 0.002
    assert not passes()
    tables[tmp_path / "b"] = rows.iloc[:190]
    assert not passes()


def test_hours_and_goals_are_read_from_plans_and_rows() -> None:
    assert (
        gpu_report.hours_of("# a\n# in all, of what has not finished: 2e9 FLOPs, 1,001.52 hours; at x")
        == 1001.52
    )
    assert gpu_report.hours_of("# in all, of what has not finished: minutes at most; at x") == 0
    engine = [
        {
            "what": "1b",
            "long_context_length": length,
            "dtype": "bfloat16",
            "way": "ours, 64",
            "fraction_of_peak": share,
        }
        for length, share in ((1024, 0.41), (4096, 0.9))
    ]
    result = {
        "peaks": {"bfloat16": 1e15},
        "engine": [*engine, {"what": "2b", "failed": "out of memory"}],
        "training": [],
    }
    found = dict(gpu_report.findings("benchmark", json.loads(json.dumps(result))))
    assert found["engine, 1b at 1024 tokens: 41% of that; goal 40%"] == "yes"
    assert found["engine failed: 2b: out of memory"] == "no"
