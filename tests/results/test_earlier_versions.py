"""Results of schema version 1: read by the names of today, never together with those of version 2."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.cli import InputError
from pipeline.query import connect, run_query
from pipeline.results import write as stage_output
from pipeline.results.export import export, write_manifest
from pipeline.results.read import read_artefact
from pipeline.results.schemas import SCHEMAS
from pipeline.results.write import StageOutput

NEW_IN_VERSION_2 = ["judge", "criterion", "gain"]
RULES = ["leave_one_out", "divergence", "nearest"]


def _columns(rules: list[str], **more: Any) -> dict[str, dict[str, list]]:
    num_rows = len(rules)
    columns = {
        "document_id": ["d"] * num_rows, "chunk_index": [0] * num_rows, "target_position": [9] * num_rows,
        "rule": rules, "loss_difference": [0.5] * num_rows, "dependency_sparsity": [4] * num_rows,
        "is_censored": [False] * num_rows,
    }  # fmt: skip
    return {"dependency_sparsity": columns | more}


def _written(results: Path, model: str, rules: list[str], **more: Any) -> Path:
    output = StageOutput(results, "influential_tokens", model, settings={}, inputs={}, num_shards=1)
    output.write_shard(0, _columns(rules, **more))
    return results / "dependency_sparsity" / f"model={model}" / "00000-of-00001.parquet"


def _as_version_1(results: Path, model: str = "old", rules: list[str] = RULES) -> Path:
    """The file as version 1 wrote it: without what is new, the rule `divergence` by that name."""
    path = _written(results, model, rules)
    table = pq.ParquetFile(path).read().drop_columns(NEW_IN_VERSION_2)
    pq.write_table(table.replace_schema_metadata(table.schema.metadata | {b"schema_version": b"1"}), path)
    shutil.rmtree(results / "_stages")
    return path


def test_version_1_is_read_and_its_divergence_has_its_present_name(tmp_path: Path) -> None:
    _as_version_1(tmp_path)
    write_manifest(tmp_path)
    frame = read_artefact(tmp_path, "dependency_sparsity")
    assert frame["rule"].tolist() == ["leave_one_out", "leave_one_out_divergence", "nearest"]
    assert frame["dependency_sparsity"].tolist() == [4, 4, 4]
    sql = "SELECT rule FROM dependency_sparsity"
    assert run_query(connect(tmp_path), sql, 9)[1] == [(rule,) for rule in frame["rule"]]
    assert frame[NEW_IN_VERSION_2].isna().all(axis=None)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["leave_one_out_divergence"], ["leave_one_out_divergence"]),
        (["nearest", "leave_one_out_divergence"], ["leave_one_out_divergence", "nearest"]),
        (["leave_one_out"], ["leave_one_out"]),
        (["greedy_divergence"], []),
    ],
)
def test_rows_of_a_rule_are_found_by_its_present_name(
    tmp_path: Path, asked: list[str], found: list[str]
) -> None:
    _as_version_1(tmp_path)
    write_manifest(tmp_path)
    frame = read_artefact(tmp_path, "dependency_sparsity", ["rule"], {"rule": asked})
    assert frame["rule"].tolist() == found


@pytest.mark.parametrize("newer", ["old", "new"])
def test_both_versions_in_one_folder_are_refused_by_name(tmp_path: Path, newer: str) -> None:
    """Whether the two are of one model or of two."""
    older = _as_version_1(tmp_path / "v1")
    kept = older.read_bytes()
    present = ["leave_one_out_divergence"]
    _written(tmp_path / "both", newer, present, judge=["new"], criterion=["loss"], gain=[0.5])
    shutil.rmtree(tmp_path / "both" / "_stages")
    of_old = tmp_path / "both" / "dependency_sparsity" / "model=old"
    of_old.mkdir(exist_ok=True)
    of_version_1 = "00000-of-00001.parquet" if newer == "new" else "00001-of-00002.parquet"
    (of_old / of_version_1).write_bytes(kept)
    write_manifest(tmp_path / "both")
    sentence = r"schema_version is . in model=\w+/\S+ and . in model=\w+/\S+"
    with pytest.raises(InputError, match=sentence) as refused:
        read_artefact(tmp_path / "both", "dependency_sparsity")
    assert {f"1 in model=old/{of_version_1}", f"2 in model={newer}/00000-of-00001.parquet"} == {
        place.strip(";")
        for place in str(refused.value).split("schema_version is ")[1].split(";")[0].split(" and ")
    }
    with pytest.raises(InputError, match=sentence):
        connect(tmp_path / "both")


def test_what_version_2_left_as_it_was_is_read_and_exported_together(tmp_path: Path) -> None:
    for model in ("old", "new"):
        output = StageOutput(
            tmp_path, "sparse_functional_attention", model, settings={}, inputs={}, num_shards=1
        )
        row = dict.fromkeys(SCHEMAS["sparse_functional_attention"].names, [1])
        laws = {"position_law": ["local"], "position_scheme": ["contiguous"]}
        output.write_shard(0, {"sparse_functional_attention": row | laws})
    path = tmp_path / "sparse_functional_attention/model=old/00000-of-00001.parquet"
    table = pq.ParquetFile(path).read()
    pq.write_table(table.replace_schema_metadata(table.schema.metadata | {b"schema_version": b"1"}), path)
    shutil.rmtree(tmp_path / "_stages")
    write_manifest(tmp_path)
    for results in (tmp_path, export([tmp_path], tmp_path / "together").parent):
        assert set(read_artefact(results, "sparse_functional_attention")["model"]) == {"old", "new"}


def test_a_run_is_not_continued_in_a_folder_of_version_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as version_1:
        version_1.setattr(stage_output, "SCHEMA_VERSION", 1)
        _written(tmp_path, "run", RULES)
    with pytest.raises(InputError, match="schema_version was 1, now 2"):
        _written(tmp_path, "run", RULES)
