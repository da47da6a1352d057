"""What the explorer's page holds: the Parquet's numbers, within the limit; and what it refuses."""

import json
import re
import shutil
from pathlib import Path

import explorable_results
import numpy as np
import pytest
from explorable_results import KS, LONG, LOSSES_ONLY, MODELS, RULES, SHORT, TARGETS, write_explorable
from exported_results import mark_as_whole

from analysis import explorer
from pipeline.cli import InputError
from pipeline.explorer_page.writing import NATS, numbers_of, page_of, to_json
from pipeline.results.read import read_artefact

ROOT = Path(__file__).resolve().parents[2]
# The first is of several chunks, whose borders cut characters.
TEXTS = ["naïve “quotes” — 你好 " * 12, "plain words of a shop " * 10, "one more text to be measured " * 9]


@pytest.fixture(scope="module")
def explorable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorable")
    write_explorable(folder, TEXTS)
    return folder


@pytest.fixture
def copied(explorable: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(explorable, tmp_path / "copy"))


def run_explorer(folder: Path, *flags: str | Path) -> Path:
    out = folder / "page.html"
    explorer.main(
        explorer.parser().parse_args([str(folder / "results"), "--out", str(out), *map(str, flags)])
    )
    return out


def embedded(page: Path) -> dict:
    """The header, with the documents' whole records, of which it holds the numbers."""
    html = page.read_text(encoding="utf-8")
    element = r'<script type="application/json" {}>(.*?)</script>'
    (header,) = map(json.loads, re.findall(element.format('id="data"'), html))
    documents = [json.loads(found) for found in re.findall(element.format('class="document"'), html)]
    assert header["documents"] == [numbers_of(document) for document in documents]
    return header | {"documents": documents}


def test_records_are_the_parquet_row_by_row(explorable: Path) -> None:
    shown = embedded(run_explorer(explorable))
    keys = ["model", "document_id", "target_position", "rule", "far_context"]
    tokens, sparse = (
        read_artefact(explorable / "results", artefact).set_index([*keys, place]).sort_index()
        for artefact, place in (("influential_tokens", "rank"), ("sparse_context_losses", "k"))
    )
    num_compared = 0
    for document in shown["documents"]:
        for chunk in document["chunks"]:
            for target, place in enumerate(chunk["targets"]):
                for model in MODELS:
                    for rule, of_rule in chunk["models"][model]["rules"].items():
                        for far_context in ("own", "other_document"):
                            key = (model, document["id"], chunk["start"] + place, rule, far_context)
                            of = {name: column[target] for name, column in of_rule[far_context].items()}
                            rows = tokens.loc[key]
                            assert of["distance"] == rows["distance"].tolist()
                            influence = np.array(of["influence"], dtype=float) * NATS
                            np.testing.assert_allclose(influence, rows["influence"], atol=NATS)
                            losses = sparse.loc[key]["sparse_context_loss"]
                            np.testing.assert_allclose(np.array(of["loss"]) * NATS, losses, atol=NATS)
                            if far_context == "other_document":
                                assert of["token"] == rows["context_token_id"].tolist()
                                assert {str(id_) for id_ in of["token"]} <= shown["null_pieces"].keys()
                            num_compared += 1
    losses = read_artefact(explorable / "results", "loss_differences", [])
    assert num_compared == (losses["model"] == LOSSES_ONLY).sum() * len(MODELS) * len(RULES) * 2


def test_losses_and_k_star_are_those_of_the_parquet(explorable: Path) -> None:
    losses = read_artefact(explorable / "results", "loss_differences")
    for document in embedded(run_explorer(explorable))["documents"]:
        for chunk in document["chunks"]:
            start, places = chunk["start"], chunk["targets"]
            assert places == list(range(LONG - TARGETS, LONG))
            for model in [*MODELS, LOSSES_ONLY]:
                rows = losses[(losses["model"] == model) & (losses["document_id"] == document["id"])]
                rows = rows.set_index("target_position").loc[[start + place for place in places]]
                measured = chunk["models"][model]
                for name, column in {
                    "short": "short_context_loss", "long": "long_context_loss", "specific": "specific_gain",
                    "expected": "short_context_divergence",
                }.items():  # fmt: skip
                    np.testing.assert_allclose(np.array(measured[name]) * NATS, rows[column], atol=NATS)
                assert "background" not in measured
                kinds = [[None, 2, "censored"][(start + place) % 3] for place in places]
                k_stars = {"loss": kinds, "divergence": [4] * len(places)}
                assert [rule["k_star"] for rule in measured["rules"].values()] == [k_stars] * len(
                    measured["rules"]
                )
            assert list(chunk["models"][LOSSES_ONLY]["rules"]) == []


def test_pieces_are_the_text_of_the_measured_chunks(explorable: Path) -> None:
    page = embedded(run_explorer(explorable))
    texts = {text[:5]: text for text in TEXTS}
    for document in page["documents"]:
        shown = "".join(piece for chunk in document["chunks"] for piece in chunk["pieces"])
        whole = texts[shown[:5]]
        # The last chunk may end inside of a character.
        assert whole.startswith(shown.rstrip("\ufffd"))
        assert document["num_tokens"] - LONG < sum(len(chunk["pieces"]) for chunk in document["chunks"])
    assert len(page["documents"]) == 3
    assert any(len(document["chunks"]) > 1 for document in page["documents"])


def test_models_and_rules_can_be_chosen(explorable: Path) -> None:
    page = embedded(
        run_explorer(explorable, "--models", "other", "--rules", "nearest", "--max-documents", "1")
    )
    assert (page["models"], page["rules"], page["k"]) == (["other"], ["nearest"], KS)
    assert page["short_context_length"] == SHORT
    (document,) = page["documents"]
    assert all(chunk["models"].keys() == {"other"} for chunk in document["chunks"])
    assert page["left_out"][0].startswith("2 of 3 documents")


def test_the_recommended_rule_is_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = ["attention", "leave_one_out", "leave_one_out_divergence"]
    monkeypatch.setattr(explorable_results, "RULES", rules)
    write_explorable(tmp_path, TEXTS[1:])
    assert embedded(run_explorer(tmp_path))["rules"] == [rules[2], *rules[:2]]


def test_texts_cannot_end_the_script_that_holds_them() -> None:
    hostile = "</script><script>alert(1)</script><!-- <img onerror=alert(1)> {{data}} \u2028 &lt;"
    record = {
        "id": hostile,
        "num_tokens": 1,
        "chunks": [{"start": 0, "pieces": [hostile], "targets": [], "models": {}}],
    }
    encoded = to_json(record)
    assert "<" not in encoded
    assert json.loads(encoded) == record
    page = page_of({"text": hostile}, [(record, encoded)])
    assert page.count("<script") == page.count("</script>") == 3


def test_missing_artefacts_and_empty_selections_are_refused(explorable: Path, copied: Path) -> None:
    for flags, sentence in (
        (("--rules", "nearst"), "unknown rule 'nearst'; did you mean 'nearest'"),
        (("--models", "othr"), "unknown model 'othr'"),
        (("--models", LOSSES_ONLY), "no document with both loss differences and influential tokens of short"),
    ):
        with pytest.raises(InputError, match=sentence):
            run_explorer(explorable, *flags)
    shutil.rmtree(copied / "results" / "influential_tokens")
    with pytest.raises(InputError, match="parquet is missing, though marked as complete"):
        run_explorer(copied)
    mark_as_whole(copied / "results")
    with pytest.raises(InputError, match="holds no influential_tokens; it holds .*sparse_context_losses"):
        run_explorer(copied)
