"""What the page quotes of planted answers beyond the trained length is what the kept tables hold."""

import re

import pandas as pd
from quoted import FINDINGS, FIRST_PAGE, REFERENCE, agree, by, cells_of, interval, section

from analysis.tokens.planted import learnt, over_models


def test_planted_answers_beyond_the_trained_length() -> None:
    text = section(FINDINGS, "Do planted answers hold longer where fewer tokens decide?")
    table = pd.read_parquet(REFERENCE / "planted_lengths.parquet")
    assert len(learnt(table)) == len(table) == 5 * 4 * 4  # all models learnt every number
    cells = by(over_models(table), "num_planted", "test_length")
    measures = [("right_share", length) for length in (64, 128, 256, 512)] + [("loss", 64), ("loss", 512)]
    for k in (1, 2, 4, 8):
        for (name, length), cell in zip(measures, cells_of(text, f"{k} |"), strict=True):
            agree(cell, *interval(cells[k, length], name))
    one, eight = cells[1, 512], cells[8, 512]
    assert one["right_share_low"] < eight["right_share_high"]  # the ranges touch
    assert one["right_share"] < cells[2, 512]["right_share"]
    of_eight = table[(table["num_planted"] == 8) & (table["test_length"] == 512)].sort_values("model")
    agree(re.findall(r"depend on the seed:\n  (.*) are right", text)[0], *of_eight["right_share"])
    by_itself = re.findall(r"missed by itself.*?, (\S+) would be right at 512; it is (\S+)\.\n", text)[0]
    agree(" ".join(by_itself), one["right_share"] ** 8, eight["right_share"])
    first_page = section(FIRST_PAGE, "What was found").replace("\n", " ")
    quoted = re.findall(
        r"eight times (\S+ \[.*?\]) of those of 8 are right, (\S+ \[.*?\]) of those of 1", first_page
    )
    for cell, row in zip(quoted[0], (eight, one), strict=True):
        agree(cell, *interval(row, "right_share"))


def test_planted_answers_of_unambiguous_texts() -> None:
    text = section(FINDINGS, "Do planted answers hold longer where fewer tokens decide?")
    table = pd.read_parquet(REFERENCE / "without_chance_signs" / "planted_lengths.parquet")
    cells = by(over_models(learnt(table)), "num_planted", "test_length")
    every = by(pd.read_parquet(REFERENCE / "planted_lengths.parquet"), "num_planted", "test_length")
    for k in (1, 2, 4, 8):
        *shown, left_out = cells_of(text, f"{k}, unambiguous")
        measures = [("right_share", 64), ("right_share", 256), ("right_share", 512), ("loss", 512)]
        for (name, length), cell in zip(measures, shown, strict=True):
            agree(cell, *interval(cells[k, length], name))
        num_texts = every[k, 512]["num_documents"]
        agree(left_out, num_texts - cells[k, 512]["num_documents"], num_texts)
    shares = table[table["test_length"] == 512].pivot(
        index="model", columns="num_planted", values="right_share"
    )
    assert (shares[8] < shares[[1, 2, 4]].min(axis=1)).all() and len(shares) == 5
    assert shares[[1, 2, 4]].to_numpy().min() >= 0.94
    assert shares[1].min() < shares[8].max()  # the ranges touch
