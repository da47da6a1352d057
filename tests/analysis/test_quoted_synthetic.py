"""Numbers that the pages quote of synthetic tasks are those of the results kept in analysis/reference."""

import re
from typing import Any

import pandas as pd
from quoted import CAUSAL, FIRST_PAGE, REFERENCE, SYNTHETIC, Row, agree, by, cells_of, interval, section

from analysis.synthetic import signs
from analysis.synthetic.accuracy import over_seeds
from analysis.synthetic.dependencies import by_kind, by_part
from pipeline.results.read import read_artefact, read_settings


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
    for label, size in {"addition with PPC": 12, "the same addition": 24}.items():
        unspread, spread = cells_of(text, label)[1:]
        agree(unspread, *of(first, "addition", "predicted", size))
        agree(spread, *of(rotated, "addition_padded", "predicted", size))
    sizes = {"within training": 5, "three times | 15": 15}
    for label, size in sizes.items():
        for cell, positions in zip(cells_of(text, label)[1:], ("predicted", "pose"), strict=True):
            agree(cell, *of(rotated, "parity_scratchpad", positions, size))


def test_sparse_parity() -> None:
    text = section(SYNTHETIC, "Does sparsity act?")
    told = []
    for folder, sizes in {"parity": (40, 80, 200), "parity_scaled": (80, 200)}.items():
        results = REFERENCE / "synthetic" / folder
        cells = over_seeds(read_artefact(results, "synthetic_accuracy"))
        learnt = cells[cells["sparsity"] <= cells["largest_train_sparsity"]]
        assert set(learnt["num_seeds"]) == {3} and learnt["is_learnt"].all()
        told.append((by(learnt, "largest_train_sparsity", "sparsity", "size"), sizes))
        settings = read_settings(results, "evaluate_synthetic").values()
        scales = {of_model.get("attention_scale", 1.0) for of_model in settings}
        assert scales == {2.0 if folder == "parity_scaled" else 1.0}
    rows = re.findall(r"^\| up to (\d) bits? \| (\d) \|(.*)\|$", text, re.MULTILINE)
    assert len(rows) == 9
    for most, k, quoted in rows:
        values = [table[int(most), int(k), size] for table, sizes in told for size in sizes]
        for cell, row in zip(quoted.split("|"), values, strict=True):
            agree(cell, *(row[name] for name in ("exact_match", "lowest", "highest")))


def test_sparse_parity_in_single_models() -> None:
    text = section(SYNTHETIC, "Does sparsity act?").replace("\n", " ")
    columns = ["largest_train_sparsity", "sparsity", "size", "seed"]
    tables = [
        read_artefact(REFERENCE / "synthetic" / folder, "synthetic_accuracy")
        for folder in ("parity", "parity_scaled")
    ]
    own, doubled = (table.set_index(columns).sort_index()["exact_match"] for table in tables)
    eight, four = re.findall(r"never shown, in (.*?); at 80 tokens they get four right in (\S+),", text)[0]
    agree(eight, *own[6, 8, 20])
    agree(four, own[6, 4, 80].mean())
    (one,) = re.findall(r"at 200 tokens one bit is right in (.*?) where", text)
    agree(one, *(own[most, 1, 200].mean() for most in (1, 2, 4, 6)))
    ones = own[6, 1, 200]
    missed_alike = (1 + (2 * ones - 1) ** 6) / 2
    found = re.findall(r"right in (\S+) there\..*? by itself, (.*?) +would be right; (\S+) are\.", text)[0]
    agree(" ".join(found[:2]), ones.mean(), missed_alike.mean(), missed_alike.min(), missed_alike.max())
    agree(found[2], own[6, 6, 200].mean())
    (spoilt,) = re.findall(r"doubling spoils six bits even at 20 tokens \((.*?)\)", text)
    agree(spoilt, *doubled[6, 6, 20])
    first = cells_of(FIRST_PAGE.read_text(encoding="utf-8"), "Does it hold where the truth is known?")[0]
    means = re.findall(r"(\S+) of the answers of one bit are right, (\S+) of four bits", first)[0]
    ranges = re.findall(r"(\d\S+ to \d\.\d+)", first)
    for k, *quoted in zip((1, 4), means, ranges, strict=True):
        of_seeds = own[4, k, 200]
        agree(" ".join(quoted), of_seeds.mean(), of_seeds.min(), of_seeds.max())
    for most in (4, 6):
        for seed in range(3):
            at_80 = [own[most, k, 80, seed] for k in range(1, most + 1) if k != 5]
            assert at_80 == sorted(at_80, reverse=True)


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
    for letter, key in (
        ("a", ("growing number less eight", "none")), ("b", ("growing number less fixed", "log_length")),
        ("c", ("scaled attention less plain, 32 weak", "none")),
        ("d", ("PoSE less plain positions", "none")), ("e", ("four signs less one, PoSE", "none")),
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
