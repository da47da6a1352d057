"""The stage influential_tokens with rules and interventions other than the default."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from measured_documents import (  # fmt: skip
    DOCUMENTS,
    LONG,
    SHORT,
    VOCABULARY_SIZE,
    measure,
    write_checkpoint,
    write_data,
)
from olmo.model import OLMo

from pipeline import influential_tokens
from pipeline.measuring.contexts import Batching, own_context
from pipeline.measuring.far_context import leave_each_out
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import LEAVE_ONE_OUT_RULES, RULES
from pipeline.models.olmo import OLMoCausalLM
from pipeline.results.read import artefacts_in, read_artefact
from pipeline.text.folder import TokenizedData, UnigramDistribution

TARGET = ["document_id", "chunk_index", "target_position"]
TRAIN_TOKENS = np.random.default_rng(7).integers(1, VOCABULARY_SIZE, 200).tolist()

EVERY_RULE = ["--rules", *RULES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_olmo: Callable[..., OLMo]) -> Path:
    folder = tmp_path_factory.mktemp("every_rule")
    write_data(folder / "data", train_token_ids=[TRAIN_TOKENS])
    write_checkpoint(folder / "run", make_olmo(seed=1))
    measure(influential_tokens, folder, *EVERY_RULE)
    return folder


@pytest.fixture
def results(tmp_path: Path) -> list[str]:
    return ["--results", str(tmp_path / "results")]


def _settings(results: Path) -> dict:
    path = next((results / "influential_tokens" / "model=run").iterdir())
    return json.loads(pq.read_schema(path).metadata[b"settings"])


def test_every_rule_ranks_the_far_context_and_its_null(folder: Path) -> None:
    rows = read_artefact(folder / "results", "influential_tokens")
    assert len(rows) == 12 * 2 * len(RULES) * 5  # targets, far contexts, rules, ranks
    assert set(rows["rule"]) == set(RULES)
    assert not rows.duplicated([*TARGET, "rule", "far_context", "rank"]).any()
    assert not rows.duplicated([*TARGET, "rule", "far_context", "context_position"]).any()
    assert (rows["distance"] > SHORT).all()
    assert (rows["context_position"] >= rows["chunk_index"] * LONG).all()
    assert rows["influence"].notna().all()
    sparse = read_artefact(folder / "results", "sparse_context_losses")
    best = sparse.query("k == 1").pivot_table(
        index=[*TARGET, "far_context"], columns="rule", values="sparse_context_loss"
    )
    for rule in RULES:  # the best single token is what add_one_in is defined by
        assert (best["add_one_in"] <= best[rule] + 1e-5).all()
    assert (best["greedy"] == best["add_one_in"]).all()


def test_results_say_how_they_were_made(folder: Path) -> None:
    settings = _settings(folder / "results")
    assert settings["rules"] == list(RULES)
    assert settings["intervention"] == "remove" and settings["unigram_sha256"] is None
    assert settings["engine"] == "left_out_at_kept_position_ids" and settings["dtype"] == "float32"


def test_a_rule_selects_the_same_whichever_rules_run_beside_it(folder: Path, results: list[str]) -> None:
    measure(influential_tokens, folder, *results, "--rules", "leave_one_out", "random")
    alone = read_artefact(Path(results[1]), "influential_tokens")
    together = read_artefact(folder / "results", "influential_tokens").query(
        "rule in ('leave_one_out', 'random')"
    )
    key = [*TARGET, "rule", "far_context", "rank"]
    frames = [frame.sort_values(key, ignore_index=True) for frame in (alone, together)]
    pd.testing.assert_frame_equal(*frames, atol=1e-5, rtol=0)


def test_influences_are_written_where_any_rule_leaves_tokens_out(folder: Path, results: list[str]) -> None:
    measure(influential_tokens, folder, *results, "--rules", "greedy", "nearest")
    assert "influences" not in artefacts_in(Path(results[1]))
    assert read_artefact(Path(results[1]), "influential_tokens")["influence"].isna().all()
    other = f"{results[1]}_by_divergence"
    measure(influential_tokens, folder, "--results", other, "--rules", "leave_one_out_divergence")
    found, expected = (
        np.concatenate(list(read_artefact(path, "influences")["influences"]))
        for path in (Path(other), folder / "results")
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_substitutes_are_drawn_from_the_training_tokens(
    folder: Path, results: list[str], make_olmo: Callable[..., OLMo]
) -> None:
    measure(influential_tokens, folder, *results, "--intervention", "substitute", "--seed", "3")
    unigram = UnigramDistribution.of_training_tokens(TokenizedData.open(folder / "data"))
    settings = _settings(Path(results[1]))
    assert settings["intervention"] == "substitute" and settings["unigram_sha256"] == unigram.sha256
    document_id, chunk_index = "00000000000000aa", 1
    lengths = ContextLengths(SHORT, LONG, 3)
    chunk = DOCUMENTS[document_id][chunk_index * LONG :][:LONG].astype(np.int64)
    expected = leave_each_out(
        OLMoCausalLM(make_olmo(seed=1)),
        own_context(chunk, lengths),
        Batching(1000),
        substitute_ids_L=unigram.draw(LONG, [3, int(document_id, 16), chunk_index, 1]),
    ).influence_TF
    rows = read_artefact(Path(results[1]), "influences").query("far_context == 'own' and chunk_index == 1")
    for found, row in zip(rows["influences"], expected, strict=True):
        np.testing.assert_allclose(found, row[~np.isnan(row)], atol=1e-5)


def test_the_intervention_moves_influences_and_no_context(folder: Path, results: list[str]) -> None:
    measure(influential_tokens, folder, *results, *EVERY_RULE, "--intervention", "substitute")
    tables = {
        name: [read_artefact(path, name) for path in (folder / "results", Path(results[1]))]
        for name in ("influential_tokens", "sparse_context_losses")
    }
    removed, substituted = tables["influential_tokens"]
    moved = {
        rule
        for rule in RULES
        if not removed.query("rule == @rule")["context_position"].equals(
            substituted.query("rule == @rule")["context_position"]
        )
    }
    assert moved == set(LEAVE_ONE_OUT_RULES)
    for loss in ("short_context_loss", "long_context_loss"):
        assert tables["sparse_context_losses"][0][loss].equals(tables["sparse_context_losses"][1][loss])
