"""What the explorer's page holds: the Parquet's numbers, within the limit; and what it refuses."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from measured_documents import measure, write_checkpoint, write_folder
from olmo.model import OLMo
from sparsity_length.analysis import explorer
from sparsity_length.analysis.explorer import _OF_TARGETS, NATS
from sparsity_length.programs import influential_tokens, loss_differences

from sparsity_length.cli import InputError
from sparsity_length.results.read import Results
from sparsity_length.text.folder import EvaluationDocument
from sparsity_length.text.tokenizer import load_tokenizer, train_bpe

# The first is of several chunks, whose borders cut characters.
TEXTS = ["naïve “quotes” — 你好 " * 12, "plain words of a shop " * 10, "one more text to be measured " * 9]


LONG = 32
TARGETS = 5
KS = [1, 2, 4, 8]
RULES = ["leave_one_out", "recency"]
MODELS = ["long <b>", "other"]
LOSSES_ONLY = "short"
"""A model with loss differences and no influential tokens."""


def write_explorable(folder: Path, texts: Sequence[str], make_olmo: Callable[..., OLMo], *flags: str) -> Path:
    """Texts, tokenized and measured with random models: what explorer.py reads."""
    tokenizer = train_bpe(texts, 600)
    documents = [
        EvaluationDocument(hashlib.sha256(text.encode()).hexdigest()[:16], token_ids)
        for text, token_ids in zip(texts, tokenizer.encode(texts), strict=True)
    ]
    write_folder(folder / "data", documents, tokenizer)
    models = [
        write_checkpoint(folder / name, make_olmo(seed=seed, vocab_size=600, embedding_size=600))
        for seed, name in enumerate([*MODELS, LOSSES_ONLY])
    ]
    words = ["--long-context-length", str(LONG), "--targets-per-chunk", str(TARGETS)]
    words += ["--max-chunks-per-document", "4", "--checkpoints"]
    measure(loss_differences, folder, *words, *models)
    few = ["--rules", *RULES, "--k", *map(str, KS), *flags]
    measure(influential_tokens, folder, *words, *models[:2], *few)
    return folder


@pytest.fixture(scope="module")
def explorable(tmp_path_factory: pytest.TempPathFactory, make_olmo: Callable[..., OLMo]) -> Path:
    return write_explorable(tmp_path_factory.mktemp("explorable"), TEXTS, make_olmo)


def run_explorer(folder: Path, *flags: str | Path) -> Path:
    out = folder / "page.html"
    explorer.STAGE([str(folder / "results"), "--out", str(out), *map(str, flags)])
    return out


def embedded(page: Path) -> dict:
    """What the page holds."""
    html = page.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html)
    return json.loads(data)


def test_records_are_the_parquet_row_by_row(explorable: Path) -> None:
    shown = embedded(run_explorer(explorable))
    pieces = load_tokenizer(explorable / "data" / "tokenizer.json").pieces
    keys = ["model", "document_id", "target_position", "rule", "distant_context"]
    losses, tokens, sparse, k_star = (
        Results(explorable / "results").frame(artefact).set_index([*keys[:3], *further]).sort_index()
        for artefact, further in (
            ("loss_differences", []),
            ("influential_tokens", [*keys[3:], "rank"]),
            ("sparse_context_losses", [*keys[3:], "k"]),
            ("dependency_sparsity", ["rule", "criterion"]),
        )
    )
    num_compared = 0
    chunks = [(document, chunk) for document in shown["documents"] for chunk in document["chunks"]]
    for document, chunk in chunks:
        assert chunk["targets"] == list(range(LONG - TARGETS, LONG))
        assert chunk["models"][LOSSES_ONLY]["rules"] == {}
        for (target, place), model in product(enumerate(chunk["targets"]), [*MODELS, LOSSES_ONLY]):
            measured = chunk["models"][model]
            position = chunk["start"] + place
            assert "swap" not in measured
            for name, column in _OF_TARGETS.items():
                row = losses.loc[model, document["id"], position]
                assert measured[name][target] * NATS == pytest.approx(row[column], abs=NATS)
            for rule, distant_context in product(measured["rules"], ("own", "other_document")):
                of_rule = measured["rules"][rule]
                rows = k_star.loc[model, document["id"], position, rule]
                numbers = rows["k_90"].astype(object).where(rows["k_90"].notna(), None)
                needed = numbers.mask(rows["is_censored"], "censored").to_dict()
                assert {name: column[target] for name, column in of_rule["k_star"].items()} == needed
                key = (model, document["id"], position, rule, distant_context)
                of = {name: column[target] for name, column in of_rule[distant_context].items()}
                rows = tokens.loc[key]
                assert of["distance"] == rows["distance"].tolist()
                influence = np.array(of["influence"], dtype=float) * NATS
                np.testing.assert_allclose(influence, rows["influence"], atol=NATS)
                of_k = sparse.loc[key]["sparse_context_loss"].loc[KS]
                np.testing.assert_allclose(np.array(of["loss"]) * NATS, of_k, atol=NATS)
                if distant_context == "other_document":
                    assert of["token"] == [pieces([id_])[0] for id_ in rows["context_token_id"]]
                num_compared += 1
    assert num_compared == len(losses.loc[LOSSES_ONLY]) * len(MODELS) * len(RULES) * 2


def test_unknown_names_and_empty_selections_are_refused(explorable: Path) -> None:
    for flags, sentence in (
        (("--rules", "recenc"), "unknown rule 'recenc'; did you mean 'recency'"),
        (("--models", "othr"), "unknown model 'othr'"),
        (("--models", LOSSES_ONLY), "no document with both loss differences and influential tokens of short"),
    ):
        with pytest.raises(InputError, match=sentence):
            run_explorer(explorable, *flags)
