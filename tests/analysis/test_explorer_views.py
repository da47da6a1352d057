"""The explorer's views in a real Chromium: links, what stands beside, lists, keys, what is taken away."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pandas as pd
import pytest
from explorable_results import KS, MODELS, RULES, write_explorable
from explorer_browser import NO_CHROMIUM, browser, opened, sync_api

from analysis import explorer
from pipeline.results.read import read_artefact

__all__ = ["browser"]  # a fixture
pytestmark = NO_CHROMIUM

TEXTS = ["plain words of a shop in the street ", "=naïve “quotes” — 你好, and so on ", "İstanbul and more "]
LENGTHS = (4, 64, 5)


@pytest.fixture(scope="module")
def explorable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the intervention `background`."""
    folder = tmp_path_factory.mktemp("explorable")
    write_explorable(folder, [text * 40 for text in TEXTS], lengths=LENGTHS, intervention="background")
    explorer.main(explorer.parser().parse_args([str(folder / "results"), "--out", str(folder / "page.html")]))
    return folder


@pytest.fixture
def page(browser: "sync_api.BrowserContext", explorable: Path) -> Iterator["sync_api.Page"]:
    yield from opened(browser, explorable / "page.html")


def read(explorable: Path, artefact: str, **where: object) -> pd.DataFrame:
    rows = read_artefact(explorable / "results", artefact)
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return rows


def view(page: "sync_api.Page") -> dict[str, str]:
    """What the address says."""
    return {name: values[0] for name, values in parse_qs(page.url.partition("#")[2]).items()}


def heading(page: "sync_api.Page") -> str:
    return page.locator("#target-heading").inner_text()


def numbers_of(page: "sync_api.Page") -> dict[str, str]:
    names, values = (page.locator(f"#numbers {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def test_a_link_opens_the_same_view(
    browser: "sync_api.BrowserContext", page: "sync_api.Page", explorable: Path
) -> None:
    page.locator("#documents button").nth(1).click()
    page.locator("#text .target").nth(3).click()
    page.get_by_role("combobox", name="Model").select_option(MODELS[1])
    page.get_by_role("combobox", name="Rule").select_option(RULES[1])
    page.get_by_role("combobox", name="Judged by").select_option("divergence")
    page.get_by_role("radio", name="null: another document's").check()
    page.get_by_role("slider").press("End")
    page.get_by_role("combobox", name="Beside it").select_option(index=1)
    said = view(page)
    assert (said["model"], said["rule"], said["far"], said["criterion"], said["k"]) == (
        MODELS[1], RULES[1], "other_document", "divergence", str(max(KS)),
    )  # fmt: skip
    (again,) = list(opened_once(browser, explorable / "page.html", "#" + page.url.partition("#")[2]))
    assert again == {
        "heading": heading(page), "numbers": page.locator("#numbers").inner_text(),
        "tokens": page.locator("#tokens").inner_text(), "url": page.url,
    }  # fmt: skip


def opened_once(browser: "sync_api.BrowserContext", path: Path, address: str) -> Iterator[dict[str, str]]:
    for other in opened(browser, path, address):
        yield {
            "heading": heading(other), "numbers": other.locator("#numbers").inner_text(),
            "tokens": other.locator("#tokens").inner_text(), "url": other.url,
        }  # fmt: skip


def test_in_a_background_the_curve_starts_at_its_loss(page: "sync_api.Page", explorable: Path) -> None:
    said = view(page)
    where = {"model": MODELS[0], "document_id": said["document"], "target_position": int(said["position"])}
    rows = read(explorable, "sparse_context_losses", **where, rule=RULES[0], far_context="own")
    losses = rows.sort_values("k")
    numbers = numbers_of(page)
    background = losses["background_loss"].iloc[0]
    assert float(numbers["Loss, foreign far context"]) == pytest.approx(background, abs=6e-4)
    label = page.locator("#chart").get_attribute("aria-label")
    assert label.startswith(f"In nats. Foreign far context: {background:.2f}"[:-1])
    points = page.locator("#chart polyline.own").get_attribute("points").split()
    heights = [float(point.split(",")[1]) for point in points]
    values = [background, *losses["sparse_context_loss"], losses["long_context_loss"].iloc[0]]
    # A lower loss stands further down: the heights are a falling line of the losses.
    scale = (heights[0] - heights[-1]) / (values[0] - values[-1])
    assert heights == pytest.approx([heights[0] + scale * (value - values[0]) for value in values], abs=0.2)


def test_the_divergence_is_that_of_the_parquet(page: "sync_api.Page", explorable: Path) -> None:
    page.get_by_role("combobox", name="Judged by").select_option("divergence")
    said = view(page)
    where = {"model": MODELS[0], "document_id": said["document"], "target_position": int(said["position"])}
    (row,) = read(
        explorable, "sparse_context_losses", **where, rule=RULES[0], far_context="own", k=int(said["k"])
    ).to_dict("records")
    shown = numbers_of(page)
    assert float(shown[f"… and {said['k']} tokens"]) == pytest.approx(
        row["sparse_context_divergence"], abs=6e-4
    )
    (expected,) = read(explorable, "loss_differences", **where)["short_context_divergence"]
    assert float(shown["Divergence, short context"]) == pytest.approx(expected, abs=6e-4)
    assert shown["k*"] == "4"


def test_another_rule_stands_beside(page: "sync_api.Page", explorable: Path) -> None:
    page.get_by_role("slider").press("End")
    page.get_by_role("combobox", name="Beside it").select_option(label=f"{MODELS[1]}: {RULES[1]}")
    said = view(page)
    where = {"document_id": said["document"], "target_position": int(said["position"]), "far_context": "own"}
    places = [
        list(
            read(explorable, "influential_tokens", **where, model=model, rule=rule).sort_values("rank")[
                "distance"
            ]
        )
        for model, rule in ((MODELS[0], RULES[0]), (MODELS[1], RULES[1]))
    ]
    rows = page.locator("#tokens tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    ranks = {int(distance): (rank, beside) for rank, beside, _, distance, *_ in rows}
    own, other = ({distance: str(rank + 1) for rank, distance in enumerate(of)} for of in places)
    assert ranks == {
        distance: (own.get(distance, "–"), other.get(distance, "–")) for distance in [*own, *other]
    }
    assert (
        f"{len(own.keys() & other.keys())} of {max(KS)} tokens are shared"
        in page.locator("#shared").inner_text()
    )
    assert page.locator("#text .beside").count() == max(KS)
    assert page.locator("#chart polyline.beside").get_attribute("points") != ""


def test_targets_of_all_documents_are_sorted_and_filtered(page: "sync_api.Page", explorable: Path) -> None:
    page.get_by_role("tab", name="All targets").click()
    losses = read(explorable, "loss_differences", model=MODELS[0])
    for option, column in (("gain-down", "loss_difference"), ("specific-down", "specific_gain")):
        page.get_by_role("combobox", name="Sort targets by").select_option(option)
        shown = [float(text.replace("−", "-")) for text in page.locator("#targets .gain").all_inner_texts()]
        largest = losses[column].sort_values(ascending=False).head(100)
        assert shown == pytest.approx(list(largest), abs=6e-3)
    # What is cut off for want of room is the text before a target, not the target.
    room = page.locator("#targets .start").first.bounding_box()
    target = page.locator("#targets b").first.bounding_box()
    assert room is not None and target is not None
    assert target["width"] > 3 and target["x"] + target["width"] <= room["x"] + room["width"] + 0.5
    page.get_by_role("textbox", name="from").fill("5")
    num_large = int((losses["specific_gain"] >= 5).sum())
    assert page.locator("#found-targets").inner_text().startswith(f"{num_large} of {len(losses)} targets")
    page.get_by_role("textbox", name="from").fill("")
    page.get_by_role("combobox", name="Sort targets by").select_option("gap-down")
    assert "choose another" in page.locator("#found-targets").inner_text()
    page.get_by_role("combobox", name="Beside it").select_option(label=f"{MODELS[1]}: {RULES[1]}")
    both = losses.merge(
        read(explorable, "loss_differences", model=MODELS[1]), on=["document_id", "target_position"]
    )
    gap = (both["long_context_loss_x"] - both["long_context_loss_y"]).max()
    assert float(page.locator("#targets .gain").first.inner_text()) == pytest.approx(gap, abs=6e-3)
    page.locator("#targets button").first.click()
    row = both.loc[(both["long_context_loss_x"] - both["long_context_loss_y"]).idxmax()]
    assert (view(page)["document"], view(page)["position"]) == (
        row["document_id"],
        str(row["target_position"]),
    )
    assert page.locator("#targets [aria-current=true]").count() == 1


def test_the_nulls_own_text(page: "sync_api.Page", explorable: Path) -> None:
    section = page.get_by_role("region", name="The null's text")
    assert section.count() == 0
    page.get_by_role("radio", name="null: another document's").check()
    said = view(page)
    where = {"model": MODELS[0], "document_id": said["document"], "target_position": int(said["position"])}
    rows = read(explorable, "influential_tokens", **where, rule=RULES[0], far_context="other_document")
    assert said["document"] not in section.locator("#null-heading").inner_text()
    shown = section.locator(".lit").evaluate_all(
        "tokens => tokens.map(token => [token.dataset.rank, token.textContent])"
    )
    assert {int(rank) for rank, _ in shown} == set(range(1, int(said["k"]) + 1))
    of_table = page.locator("#tokens tbody tr").evaluate_all(
        "rows => rows.map(row => row.cells[1].textContent)"
    )
    by_rank = {int(rank): text for rank, text in shown}
    for rank, name in enumerate(of_table[: len(rows)], start=1):
        assert (
            by_rank[rank].strip() == name.strip("␣").replace("␣", " ").strip()
            or not by_rank[rank].isprintable()
        )


def test_the_target_as_csv(page: "sync_api.Page", explorable: Path) -> None:
    said = view(page)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Target as CSV").click()
    content = Path(waiting.value.path()).read_text(encoding="utf-8")
    rows = pd.DataFrame(csv.DictReader(io.StringIO(content)))
    where = {"document_id": said["document"], "target_position": int(said["position"])}
    keys = ["model", "rule", "far_context", "rank"]
    expected = read(explorable, "influential_tokens", **where).sort_values(keys)
    shown = rows.astype({"rank": int}).sort_values(keys)
    assert shown[keys].to_numpy().tolist() == expected[keys].to_numpy().tolist()
    assert shown["distance"].astype(int).tolist() == expected["distance"].tolist()
    assert not shown["token"].str.match(r"[=+\-@]").any()


def test_a_screen_reader_finds_everything_by_name(page: "sync_api.Page") -> None:
    page.get_by_role("radio", name="null: another document's").check()
    for selector in (
        "button",
        "input",
        "select",
        "svg[role=img]",
        "[role=tabpanel]",
        "[role=tab]",
        "section",
    ):
        for found in page.locator(selector).all():
            name = found.evaluate(
                "e => e.ariaLabel || e.labels?.[0]?.textContent || e.textContent"
                " || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent"
            )
            assert name and name.strip(), found.evaluate("e => e.outerHTML")
    ids = page.locator("[id]").evaluate_all("elements => elements.map(element => element.id)")
    assert len(ids) == len(set(ids))
    page.get_by_role("tab", name="Documents").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="All targets").get_attribute("aria-selected") == "true"
    assert page.get_by_role("tabpanel", name="All targets").is_visible()
