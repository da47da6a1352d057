"""How far a model reads, and text beyond the trained length: by hand, a planted reach is found, the rules."""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hugging_face_families import make_model
from measured_documents import run, write_texts
from sparsity_length.programs import length_interference, plant_needles
from written_results import write_tables

from sparsity_length.cli import InputError
from sparsity_length.figures import beyond, reach
from sparsity_length.results.read import Results
from sparsity_length.text.folder import NEEDLES_FILE
from sparsity_length.text.tokenizer import train_bpe

MODEL = "SmolLM2-135M-Instruct"
KEPT = {
    reach.PLAIN: [1.0, 0.9, 0.1, 0.0],
    reach.YARN: [1.0, 0.9, 0.8, 0.7],
    reach.STAIR: [1.0, 0.9, 0.3, 0.2],
}

PLACEMENTS = ("own:54", "own:54@554", "last:4")


def planted_items(kept: dict[str, list[float]] = KEPT) -> pd.DataFrame:
    """Telling is worth 10 nats at gap 0, and a planted share of it elsewhere; colors are never right."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "model": MODEL,
            "rope": rope,
            "template": template,
            "document_id": str(text),
            "gap": gap,
            "loss_told": 12 - worth * share + rng.normal(0, 0.5),
            "loss_not_told": 12.0,
            "is_right_told": template != "color" and share > 0.5,
            "is_right_not_told": False,
        }
        for text, worth in enumerate(rng.uniform(8, 12, 40))
        for template in ("number", "word", "color")
        for rope, shares in kept.items()
        for gap, share in zip([0, 4096, 7168, 8192], shares, strict=True)
    )


def test_a_planted_reach_is_found_and_the_rules_decide() -> None:
    items = planted_items()
    table = reach.curves(items)
    assert set(table["template"]) == {"number", "word", reach.TOGETHER}, "color is not answered at gap 0"
    assert table["num_documents"].eq(40).all()
    for rope, shares in KEPT.items():
        curve = reach.of_curve(table, MODEL, rope)
        assert curve["share_kept"].tolist() == pytest.approx(shares, abs=0.02)
        assert curve["right_told"].tolist() == [float(share > 0.5) for share in shares]
    assert reach.reach(reach.of_curve(table, MODEL, reach.PLAIN)) == 4096
    assert reach.reach(reach.of_curve(table, MODEL, reach.YARN, "word")) == 8192
    assert reach.reads_less_than_trained(table, MODEL) == ("supported", 7168)
    *words, lead = reach.makes_readable(items, table, MODEL, reach.YARN)
    assert words == ["supported", 7168]
    assert lead.estimate == pytest.approx(0.7, abs=0.02) and lead.low > 0.65
    assert reach.makes_readable(items, table, MODEL, reach.STAIR)[0] == "refuted"
    reach.reach_figure(table)


@pytest.mark.parametrize(
    ("plain", "with_yarn", "less", "readable"),
    [
        ([1.0, 0.9, 0.9, 0.1], [1.0, 0.9, 0.9, 0.2], "refuted", "refuted"),
        ([1.0, 0.9, 0.5, 0.2], [1.0, 0.9, 0.9, 0.5], "inconclusive", "inconclusive"),
        ([1.0, 0.9, 0.9, 0.9], [1.0, 0.9, 0.9, 0.9], "refuted", None),
    ],
)
def test_the_rules(plain: list[float], with_yarn: list[float], less: str, readable: str | None) -> None:
    items = planted_items({reach.PLAIN: plain, reach.YARN: with_yarn})
    table = reach.curves(items)
    assert reach.reads_less_than_trained(table, MODEL)[0] == less
    found = reach.makes_readable(items, table, MODEL, reach.YARN)
    assert (found and found[0]) == readable


def test_a_gap_beyond_one_that_is_not_read_does_not_count() -> None:
    curve = pd.DataFrame({"share_kept_low": [0.9, 0.4, 0.8]}, index=[0, 512, 1024])
    assert (reach.reach(curve), reach.read_again(curve)) == (0, [1024])
    assert reach.reach(curve[1:]) is None


def test_items_are_sums_over_answers_told_and_not_told(tmp_path: Path) -> None:
    texts = [
        " ".join(f"The {word} river runs past an old hill." for word in words * 5) for words in ("abc", "xyz")
    ]
    question = " What is the magic number of Oslo? The magic number of Paris is 1."
    tokenizer = train_bpe([*texts, 9 * question], 320)
    write_texts(tmp_path / "data", texts, tokenizer)
    made = ["--data", tmp_path / "data", "--out", tmp_path / "needles", "--document-lengths", 100]
    run(plant_needles, *made, "--templates", "number", "color", "--depths", 0.25)
    data = tmp_path / "needles" / "length-100" / "data"
    make_model("llama", vocab_size=320).save_pretrained(tmp_path / "llama")
    placed = "--long-context-length 100 --near-context-length 45 --share-near --placements"
    words = ["--data", data, "--checkpoints", tmp_path / "llama", *placed.split(), *PLACEMENTS]
    for results, *flags in (("plain", 20), ("scaled", 20, "--rope", "yarn:2"), ("short", 2)):
        run(length_interference, *words, "--results", tmp_path / results, "--targets-per-chunk", *flags)
    with pytest.raises(InputError, match="tokens; measure --targets-per-chunk"):
        reach.reach_items(data, [tmp_path / "short"])
    items = reach.reach_items(data, [tmp_path / "plain", tmp_path / "scaled"])
    of_texts = product(["plain", "yarn:2"], ["color", "number"], [0, 500])
    assert items.value_counts(["rope", "template", "gap"]).to_dict() == dict.fromkeys(of_texts, 2)
    (item, *_) = items.query("template == 'color' and rope == 'yarn:2' and gap == 500").to_dict("records")
    planted = pd.read_parquet(data / NEEDLES_FILE).query("template == 'color'")
    rows = Results(tmp_path / "scaled").frame("length_interference").query("placement == 'own:54@554'")
    of_documents = rows.set_index("document_id").sort_values("target_position")
    for needle in planted[planted["source_document_id"] == item["document_id"]].to_dict("records"):
        answer = of_documents.loc[needle["document_id"]][-needle["num_answer_tokens"] :]
        name = "not_told" if np.isnan(needle["depth"]) else "told"
        assert answer["target_position"].iloc[0] == 100 - needle["num_answer_tokens"]
        assert item[f"loss_{name}"] == pytest.approx(answer["loss"].sum(), rel=1e-6)
        assert item[f"is_right_{name}"] == answer["is_top"].all()


ZEROS = dict.fromkeys(
    [
        "chunk_index",
        "target_token_id",
        "num_long_context_tokens",
        "short_context_loss",
        "loss_difference",
        "swapped_context_loss",
    ],
    0,
)


def texts_of(folder: Path, harms: dict[str, list[float]]) -> pd.DataFrame:
    """Texts a, b, c, … of two last targets, whose loss with the last part alone is 3 and 5 nats.

    `within` has two earlier targets, too, which no other run has.
    """
    losses = {beyond.WITHIN: [0.0] * 9, **{beyond.SCHEMES[scheme]: harm for scheme, harm in harms.items()}}
    for results, harm in losses.items():
        rows = [
            {
                **ZEROS,
                "document_id": text,
                "target_position": position,
                "long_context_loss": loss + more,
                "document_specific_gain": position / 10 - more,
            }
            for text, more in zip("abcdefghi", harm, strict=False)
            for position, loss in ((1, 90.0), (2, 90.0), (8, 3.0), (9, 5.0))
            if position > 7 or results == beyond.WITHIN
        ]
        write_tables(folder / results, "loss_differences", "m", {}, {"loss_differences": rows})
    return beyond.of_texts(folder)


def test_what_a_scheme_repairs_by_hand(tmp_path: Path) -> None:
    texts = texts_of(
        tmp_path,
        {
            "plain": [1.0, 3.0, 2.0],
            "YaRN × 2": [0.25, 0.75, 0.5],
            "stair positions": [2.0, 0.0],  # of c, stairs are not there: it does not count
        },
    )
    assert texts.index.tolist() == ["a", "b"] and texts["within"].tolist() == [4, 4]
    assert texts["gain YaRN × 2"].tolist() == pytest.approx([0.85 - 0.25, 0.85 - 0.75])
    harm_of = beyond.harms(texts)
    assert harm_of["plain"].tolist() == pytest.approx([1, 3])
    assert beyond.repaired(harm_of, "YaRN × 2").estimate == pytest.approx(1 - 1 / 4)
    assert beyond.repaired(harm_of, "stair positions").estimate == pytest.approx(1 - 2 / 4)


@pytest.mark.parametrize(
    ("plain", "yarn", "word"),
    [
        ([1.0, 1.2, 0.8, 1.1], [0.2, 0.2, 0.1, 0.2], "supported"),
        ([1.0, 1.2, 0.8, 1.1], [0.9, 1.2, 0.8, 1.0], "refuted"),
        ([1.0, 1.2, 0.8, 1.1], [0.2, 0.9, 0.1, 1.0], "inconclusive"),
        ([1.0, -1.2, 0.8, -1.1], [0.0, 0.0, 0.0, 0.0], "inconclusive"),  # plain does no harm
    ],
)
def test_the_rule_of_the_plan(tmp_path: Path, plain: list[float], yarn: list[float], word: str) -> None:
    texts = texts_of(tmp_path, {"plain": plain, "YaRN × 2": yarn, "stair positions": plain})
    assert beyond.verdict(beyond.harms(texts), "YaRN × 2") == word
