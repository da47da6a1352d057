"""What the explorer's page holds: the Parquet's numbers, within the limit; and what it refuses."""

import json
import re
import shutil
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from measured_documents import measure, write_checkpoint, write_texts
from olmo.model import OLMo
from sparsity_length.analysis import explorer
from sparsity_length.analysis.explorer import NATS
from sparsity_length.programs import influential_tokens, loss_differences

from sparsity_length.cli import InputError
from sparsity_length.results.read import Results
from sparsity_length.text.tokenizer import load_tokenizer, train_bpe

# The first is of several chunks, whose borders cut characters.
TEXTS = ["naïve “quotes” — 你好 " * 12, "plain words of a shop " * 10, "one more text to be measured " * 9]


LONG = 32
TARGETS = 3
WORDS = f"--long-context-length {LONG} --targets-per-chunk {TARGETS} --max-chunks-per-document 4".split()
KS = [1, 2, 4, 8]
RULES = ["leave_one_out", "recency"]
OF_TARGETS = {
    "short": "short_context_loss",
    "long": "long_context_loss",
    "expected": "short_context_divergence",
    "specific": "document_specific_gain",
}
"""What the page calls columns."""
FEW = ["--rules", *RULES, "--k", *map(str, KS)]
MODELS = ["long <b>", "other"]
LOSSES_ONLY = "short"
"""A model with loss differences and no influential tokens."""


def write_explorable(folder: Path, texts: Sequence[str], make_olmo: Callable[..., OLMo], *flags: str) -> Path:
    """Texts, tokenized and measured with random models: what explorer.py reads."""
    tokenizer = train_bpe(texts, 600)
    write_texts(folder / "data", texts, tokenizer)
    models = [
        write_checkpoint(folder / name, make_olmo(seed=seed, vocab_size=600, embedding_size=600))
        for seed, name in enumerate([*MODELS, LOSSES_ONLY])
    ]
    measure(loss_differences, folder, *WORDS, "--checkpoints", *models)
    measure(influential_tokens, folder, *WORDS, *FEW, *flags, "--checkpoints", *models[:2])
    return folder


@pytest.fixture(scope="module")
def explorable(tmp_path_factory: pytest.TempPathFactory, make_olmo: Callable[..., OLMo]) -> Path:
    return write_explorable(tmp_path_factory.mktemp("explorable"), TEXTS, make_olmo)


def embedded(folder: Path, *flags: str) -> dict[str, Any]:
    """What the page of these results holds."""
    out = folder / "page.html"
    explorer.STAGE([str(folder / "results"), "--out", str(out), *flags])
    html = out.read_text(encoding="utf-8")
    return json.loads(*re.findall(r'<script type="application/json" id="data">(.*?)</script>', html))


def test_records_are_the_parquet_row_by_row(explorable: Path) -> None:
    record = embedded(explorable)
    assert (record["search_swaps"], record["recovery_fraction"]) == (None, 0.9)
    pieces = load_tokenizer(explorable / "data" / "tokenizer.json").pieces
    losses, tokens, sparse, k_star = (
        Results(explorable / "results")
        .frame(artefact)
        .set_index(["model", "document_id", *keys, "target_position"])
        .sort_index()
        for artefact, *keys in (
            ["loss_differences"],
            ["influential_tokens", "rule", "distant_context"],
            ["sparse_context_losses", "rule", "distant_context"],
            ["dependency_sparsity", "rule", "criterion"],
        )
    )
    chunks = [(document["id"], chunk) for document in record["documents"] for chunk in document["chunks"]]
    assert len(chunks) * TARGETS == len(losses.loc[LOSSES_ONLY])
    for (document_id, chunk), model in product(chunks, [*MODELS, LOSSES_ONLY]):
        assert chunk["targets"] == list(range(LONG - TARGETS, LONG))
        positions = chunk["start"] + np.array(chunk["targets"])
        measured = chunk["models"][model]
        assert "swap" not in measured and sorted(measured["rules"]) == (RULES if model in MODELS else [])
        of_targets = losses.loc[model, document_id].loc[positions, [*OF_TARGETS.values()]]
        found = np.transpose([measured[name] for name in OF_TARGETS])
        np.testing.assert_allclose(found * NATS, of_targets, atol=NATS)
        for rule, criterion in product(measured["rules"], ("loss", "divergence")):
            rows = k_star.loc[model, document_id, rule, criterion].loc[positions]
            needed = rows["k_90"].astype(object).mask(rows["is_censored"], "censored")
            assert measured["rules"][rule]["k_star"][criterion] == needed.where(needed.notna(), None).tolist()
        for rule, distant_context in product(measured["rules"], ("own", "other_document")):
            of = measured["rules"][rule][distant_context]
            rows = tokens.loc[model, document_id, rule, distant_context].loc[positions]
            assert np.ravel(of["distance"]).tolist() == rows["distance"].tolist()
            influence = np.ravel(of["influence"]).astype(float) * NATS
            np.testing.assert_allclose(influence, rows["influence"], atol=NATS)
            of_k = sparse.loc[model, document_id, rule, distant_context].loc[positions].query("k in @KS")
            np.testing.assert_allclose(np.ravel(of["loss"]) * NATS, of_k["sparse_context_loss"], atol=NATS)
            if distant_context == "other_document":
                of_ids = [pieces([id_])[0] for id_ in rows["context_token_id"]]
                assert np.ravel(of["token"]).tolist() == of_ids


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--rules", "recenc"), "unknown rule 'recenc'; did you mean 'recency'"),
        (("--models", "othr"), "unknown model 'othr'"),
        (("--models", LOSSES_ONLY), "no document with both loss differences and influential tokens of short"),
    ],
)
def test_unknown_names_and_empty_selections_are_refused(
    flags: tuple[str, str], sentence: str, explorable: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        embedded(explorable, *flags)


def test_stages_and_models_measured_with_other_settings_are_refused(explorable: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(explorable, tmp_path / "copied")
    words = [*WORDS, "--target-stride", "2", "--rules", "recency", "--k", "1", "--checkpoints"]
    measure(influential_tokens, folder, *words, folder / LOSSES_ONLY)
    for flags, differing in (((), "k, target_stride"), (("--models", LOSSES_ONLY), "target_stride")):
        with pytest.raises(InputError, match=f"the models or stages of .* differ in {differing};"):
            embedded(folder, *flags)
    assert embedded(folder, "--models", *MODELS)["target_stride"] == 1


def test_choosing_pairs_documents_not_targets(explorable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the memory that many targets take."""
    frame = Results.frame
    monkeypatch.setattr(Results, "frame", lambda *about: pd.concat([frame(*about)] * 30))
    tracemalloc.start()
    explorer.choose(explorable / "results", None, None)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1e7
