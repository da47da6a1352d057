"""Numbers that the pages quote of synthetic tasks are those of the results kept in analysis/reference."""

import re
from typing import Any

import pandas as pd
from quoted import CAUSAL, FIRST_PAGE, REFERENCE, SYNTHETIC, Row, agree, by, cells_of, interval, section

from analysis.synthetic import signs
from analysis.synthetic.accuracy import few_less_many, over_seeds
from analysis.synthetic.dependencies import by_kind, by_part
from pipeline.results.read import read_artefact


def test_position_coupling() -> None:
    text = section(SYNTHETIC, "Does position coupling reach beyond the trained size?") + section(
        SYNTHETIC, "What limits position coupling?"
    )
    first, rotated = (
        by(
            over_seeds(pd.read_parquet(REFERENCE / f"synthetic/{folder}/synthetic_accuracy.parquet")),
            "task", "positions", "size",
        )
        for folder in ("results", "rotated")
    )  # fmt: skip

    def of(cells: dict[Any, Row], *key: str | int) -> tuple[float, float, float]:
        return tuple(cells[key][name] for name in ("exact_match", "lowest", "highest"))  # type: ignore[return-value]

    for label, size in {"variable assignment, whose": 18, "parity with a scratchpad | three": 30}.items():
        task = label.split(",")[0].split(" with")[0]
        name = {"parity": "parity_scratchpad"}.get(task, task.replace(" ", "_"))
        agree(cells_of(text, label)[-3], *of(first, name, "predicted", size))
    for label, size in {"copy | 20 letters": 20, "copy | 30 letters": 30}.items():
        agree(cells_of(text, label)[-3], *of(first, "copy", "predicted", size))
    for label, size in {"copy with PPC": 30, "the same | 40": 40}.items():
        quarter, whole = cells_of(text, label)[1:]
        agree(quarter, *of(first, "copy", "predicted", size))
        agree(whole, *of(rotated, "copy", "predicted", size))
    assigned = ("variable_assignment", "predicted", 18)
    quarter, whole = cells_of(text, "assignments with PPC")[1:]
    agree(quarter, *of(first, *assigned))
    agree(whole, *of(rotated, *assigned))
    for label, size in {"addition with PPC": 12, "addition, as in the row above": 24}.items():
        unspread, spread = cells_of(text, label)[1:]
        agree(unspread, *of(first, "addition", "predicted", size))
        agree(spread, *of(rotated, "addition_padded", "predicted", size))
    sizes = {"within training": 5, "three times | 15": 15}
    for label, size in sizes.items():
        for cell, positions in zip(cells_of(text, label)[1:], ("predicted", "pose"), strict=True):
            agree(cell, *of(rotated, "parity_scratchpad", positions, size))


def test_sparse_parity() -> None:
    text = section(SYNTHETIC, "Does sparsity act?")
    accuracy = read_artefact(REFERENCE / "synthetic/parity", "synthetic_accuracy")
    cells = over_seeds(accuracy)
    assert set(cells["num_seeds"]) == {4} and cells["is_learnt"].all()
    means = by(cells, "sparsity", "size")
    for label, size in {"at 18 tokens": 18, "at 36,": 36, "at 72,": 72, "at 180,": 180}.items():
        for k, cell in enumerate(cells_of(text, label), start=1):
            agree(cell, means[k, size]["exact_match"])
    paired = few_less_many(accuracy).fillna({"fewer": 0})
    rows = by(paired, "fewer", "size")
    for label, fewer in {"1 and 8": 1, "2 and 7": 2, "3 and 6": 3, "4 and 5": 4, "mean": 0}.items():
        for cell, size in zip(cells_of(text, label), (72, 180), strict=True):
            agree(cell, *interval(rows[fewer, size], "further_difference"))
    of_one = accuracy[accuracy["sparsity"] == 1].pivot(index="seed", columns="size", values="exact_match")
    assert (of_one.round(2) == 1).all(axis=1).sum() == 3
    agree(re.findall(r"gets one bit right in (\S+) only", text)[0], of_one[180].min())
    first = cells_of(
        FIRST_PAGE.read_text(encoding="utf-8"),
        "Do sparse predictions generalize better where the truth is known?",
    )[0]
    one, eight = re.findall(r"right in (\S+) of cases, those that eight decide in (\S+) ", first)[0]
    agree(f"{one} {eight}", means[1, 72]["exact_match"], means[8, 72]["exact_match"])


def test_planted_correlation() -> None:
    text = section(SYNTHETIC, "Are planted correlations learnt?")
    accuracy = pd.read_parquet(REFERENCE / "synthetic/further/synthetic_accuracy.parquet")
    cells = over_seeds(accuracy[accuracy["task"] == "planted_correlation"])
    assert cells["is_learnt"].all() and set(cells["num_seeds"]) == {3}
    own = by(cells[cells["sparsity"] == cells["largest_train_sparsity"]], "sparsity", "size")
    for k in (1, 2):
        for size, cell in zip((40, 80, 160), cells_of(text, f"K_train = {k}"), strict=True):
            agree(cell, *(own[k, size][name] for name in ("exact_match", "lowest", "highest")))
    assert (cells[cells["sparsity"] == 1]["lowest"] == 1).all()
    two = (accuracy["task"] == "planted_correlation") & (accuracy["largest_train_sparsity"] == 2)
    longest = accuracy[two & (accuracy["sparsity"] == 2) & (accuracy["size"] == 80)]["exact_match"]
    assert sorted(longest.round(2)) == [0.73, 0.75, 1.0]


def test_what_the_rules_find_of_the_truth() -> None:
    text = section(SYNTHETIC, "Do the selection rules find the tokens that truly decide?").replace("\n", " ")
    found = by(
        by_part(read_artefact(REFERENCE / "synthetic/results", "found_dependencies")),
        "rule", "intervention", "sparsity", "part",
    )  # fmt: skip
    quoted = re.findall(r"`leave_one_out` finds (.*?) of the bits and (.*?) of the\s+marks", text)[0]
    for part, numbers in zip(("bits", "marks"), quoted, strict=True):
        row = found["leave_one_out", "substitute", 2, part]
        agree(numbers, *(row[name] for name in ("found", "found_lowest", "found_highest")))


def test_what_predicted_ids_depend_on() -> None:
    text = section(SYNTHETIC, "What do predicted position IDs depend on?")
    rows = read_artefact(REFERENCE / "synthetic/further", "found_id_dependencies")
    kinds = by_kind(rows).fillna({"intervention": "-"})
    assert set(kinds["num_seeds"]) == {2} and set(kinds["num_targets"]) == {300}
    found = by(kinds, "rule", "intervention", "part")
    leaving_out = "leave_one_out_divergence"
    for label, rule, intervention, name in (
        ("token taken away", leaving_out, "remove", "found"),
        ("how far that moves", leaving_out, "remove", "effect"),
        ("token replaced", leaving_out, "substitute", "found"),
        ("how far the first then", leaving_out, "substitute", "effect"),
        ("found first by `attention`", "attention", "-", "found"),
        ("found first by `gradient`", "gradient", "-", "found"),
    ):
        for part, cell in zip(("a left side", "=", "a right side"), cells_of(text, label), strict=True):
            row = found[rule, intervention, part]
            agree(cell, *(interval_of_seeds(row) if name == "found" else (row["effect"],)))
    second = rows[(rows["rule"] == leaving_out) & (rows["rank"] == 2)]
    of_kinds = second.groupby(["intervention", second["target_index"] % 3])["effect"].mean()
    (most,) = re.findall(r"moves the prediction by (\S+) nats or less", text)
    assert of_kinds.max() <= float(most)


def interval_of_seeds(row: Row) -> tuple[float, float, float]:
    return row["found"], row["found_lowest"], row["found_highest"]


def test_signs() -> None:
    accuracy = read_artefact(REFERENCE / "synthetic" / "signs", "synthetic_accuracy")
    assert accuracy["is_learnt"].all() and set(accuracy["num_examples"]) == {128}
    page, planned = CAUSAL.read_text(encoding="utf-8"), section(CAUSAL, "The planned contrasts")
    by_length = section(CAUSAL, "Excess loss by length")
    growths = signs.growths(accuracy)
    table = by(signs.contrasts(growths), "contrast", "attention_scaling")
    for number, name in enumerate(signs.CONTRASTS, 1):
        _, _, first, second, difference, p_value = cells_of(planned, f"{number} | ")
        row = table[name, "none"]
        agree(f"{first} {second} {p_value}", row["first"], row["second"], row["holm_p_value"])
        agree(difference, *interval(row, "difference"))
    again = re.findall(r"contrast \d (\S+ \[\S+ \S+\])", planned)
    for quoted, name in zip(again, list(signs.CONTRASTS)[:4], strict=True):
        agree(quoted, *interval(table[name, "log_length"], "difference"))
    five = by(signs.contrasts(growths[growths["seed"] < 5]), "contrast", "attention_scaling")
    (earlier,) = re.findall(r"contrasts 2 to 5 were (.*?): so contrast 5", planned.replace("\n", " "))
    of_five = list(signs.CONTRASTS)[1:]
    for quoted, name in zip(re.findall(r"\S+ \[\S+ \S+\]", earlier), of_five, strict=True):
        agree(quoted, *interval(five[name, "none"], "difference"))
    for letter, key in (
        ("a", ("growing number less eight", "none")), ("b", ("growing number less fixed", "log_length")),
        ("c", ("scaled attention less plain, 32 weak", "none")),
        ("d", ("PoSE less plain positions", "none")), ("e", ("four signs less one, PoSE", "none")),
        ("f", ("learnt scale less plain", "none")), ("g", ("four signs less one, learnt scale", "none")),
    ):  # fmt: skip
        _, first, second, difference = cells_of(planned, f"{letter} | ")
        row = table[key]
        agree(f"{first} {second}", row["first"], row["second"])
        agree(difference, *interval(row, "difference"))
    cells = by(signs.over_lengths(accuracy), "task", "positions", "attention_scaling", "size")
    for label, task in {
        "1 | anywhere | plain": "signs_1", "2 | anywhere | plain": "signs_2",
        "4 | anywhere | plain": "signs_4",
        "1 | anywhere | coupled": "signs_1", "2 | anywhere | coupled": "signs_2",
        "4 | anywhere | coupled": "signs_4", "1 | near": "signs_1_local", "4 | near": "signs_4_local",
        "32 weak": "signs_32_weak", "growing | anywhere": "signs_growing", "8 weak": "signs_8_weak",
        "1 | anywhere | PoSE": "signs_1", "4 | anywhere | PoSE": "signs_4", "2 | near": "signs_2_local",
    }.items():  # fmt: skip
        positions = next((name for name in ("coupled", "pose") if name in label.lower()), "contiguous")
        rows = [cells[task, positions, "none", size] for size in (64, 256, 512, 1024, 2048)]
        attention = [rows[place]["sign_attention"] for place in (0, 2, 4)]
        quoted = " ".join(cells_of(by_length, label)[-8:])
        agree(quoted, *(row["excess_loss"] for row in rows), *attention)
    told = {
        "one sign anywhere": "signs_1",
        "four,": "signs_4",
        "32 weak": "signs_32_weak",
        "a growing": "signs_growing",
    }
    for words, task in told.items():
        (quoted,) = re.findall(rf"(\d+) for {words}", page.replace("\n", " "))
        agree(quoted, cells[task, "contiguous", "none", 512]["times_trained"])
    of_four = growths[(growths["task"] == "signs_4") & (growths["positions"] == "contiguous")]
    of_four = of_four.loc[of_four["attention_scaling"] == "none", "growth"]
    (quoted,) = re.findall(r"growth of four signs is between (\S+ and \S+)\.", page)
    agree(quoted, of_four.min(), of_four.max())
