"""The stage influential_tokens with rules and interventions other than the default."""

import json
import shutil
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
    contents,
    measure,
    write_checkpoint,
    write_data,
)
from olmo.model import OLMo

from pipeline import influential_tokens
from pipeline.cli import InputError
from pipeline.measuring import rules
from pipeline.measuring import stage as attention_heads
from pipeline.measuring.contexts import Batching, own_context
from pipeline.measuring.far_context import leave_each_out
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import LEAVE_ONE_OUT_RULES, RULES
from pipeline.models.olmo import OLMoCausalLM
from pipeline.results.read import artefacts_in, read_artefact
from pipeline.text.folder import TokenizedData, UnigramDistribution

TARGET = ["document_id", "chunk_index", "target_position"]
TRAIN_TOKENS = np.random.default_rng(7).integers(1, VOCABULARY_SIZE, 200).tolist()

INSTALLED = [name for name, rule in RULES.items() if rule.is_installed]
EVERY_RULE = ["--rules", *INSTALLED, "--learning-chunks", "4"]


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
    assert len(rows) == 12 * 2 * len(INSTALLED) * 5  # targets, far contexts, rules, ranks
    assert set(rows["rule"]) == set(INSTALLED)
    assert not rows.duplicated([*TARGET, "rule", "far_context", "rank"]).any()
    assert not rows.duplicated([*TARGET, "rule", "far_context", "context_position"]).any()
    assert (rows["distance"] > SHORT).all()
    assert (rows["context_position"] >= rows["chunk_index"] * LONG).all()
    assert rows["influence"].notna().all()
    sparse = read_artefact(folder / "results", "sparse_context_losses")
    best = sparse.query("k == 1").pivot_table(
        index=[*TARGET, "far_context"], columns="rule", values="sparse_context_loss"
    )
    for rule in INSTALLED:  # the best single token is what add_one_in is defined by
        assert (best["add_one_in"] <= best[rule] + 1e-5).all()
    assert (best["greedy"] == best["add_one_in"]).all()


def test_weights_of_heads_are_fitted_once_and_kept(
    folder: Path, results: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_all = read_artefact(folder / "results", "attention_heads")
    assert of_all["head_index"].tolist() == list(range(8)) and of_all["loss_weight"].ne(0).all()
    words = [*results, "--rules", "learned_attention", "random", "--k", "1", "--learning-chunks", "4"]
    measure(influential_tokens, folder, *words)
    again = read_artefact(Path(results[1]), "attention_heads")
    pd.testing.assert_frame_equal(again, of_all)
    assert _settings(Path(results[1]))["learning_chunks"] == 4
    chosen = contents(Path(results[1]) / "influential_tokens")
    shutil.rmtree(Path(results[1]) / "influential_tokens")
    monkeypatch.setattr(attention_heads, "fitted_head_weights", None)  # which would fail
    measure(influential_tokens, folder, *words)
    assert contents(Path(results[1]) / "influential_tokens") == chosen


def test_rules_that_cannot_run_are_refused(
    folder: Path, results: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "find_spec", lambda name: None)
    for words, sentence in (
        ("learned_attention", "has 16 chunks of 12 training tokens, and 32 are to be"),
        ("surrogate --num-subsets 4", "--num-subsets 4 tells rule surrogate of at most 4 tokens, and"),
        ("integrated_gradients", r"'integrated_gradients' needs captum, which is not installed: pip install"),
    ):
        with pytest.raises(InputError, match=sentence):
            measure(influential_tokens, folder, *results, "--rules", *words.split())
        assert not (Path(results[1]) / "influential_tokens").exists(), words


def test_results_say_how_they_were_made(folder: Path) -> None:
    settings = _settings(folder / "results")
    assert settings["rules"] == INSTALLED
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
        for rule in INSTALLED
        if not removed.query("rule == @rule")["context_position"].equals(
            substituted.query("rule == @rule")["context_position"]
        )
    }
    assert moved == set(LEAVE_ONE_OUT_RULES)
    for loss in ("short_context_loss", "long_context_loss"):
        assert tables["sparse_context_losses"][0][loss].equals(tables["sparse_context_losses"][1][loss])
