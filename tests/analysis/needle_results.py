"""Results of planted needles whose losses and selections are known."""

from pathlib import Path

from written_results import write_tables

from pipeline.text.planting import NEEDLES_FILE, write_truth

LENGTHS = [40, 60]
DEPTHS = [0.0, 0.5, 1.0]
SOURCES = ["s1", "s2", "s3"]
SHORT = 10
KS = [1, 2, 4]
NUM_ANSWER = 2
NUM_NEEDLE = 6
LOSS_WITHOUT = 3.0
GAIN = {0.0: 1.0, 0.5: 0.0, 1.0: 2.75}


def rows_of_needles(length: int) -> list[dict]:
    rows = []
    for source in SOURCES:
        for depth in (None, *DEPTHS):
            place = None if depth is None else round(depth * (length - 20))
            answers = [] if place is None else [place + 3, place + 4]
            rows.append(
                {
                    "document_id": f"{source} {depth}",
                    "source_document_id": source,
                    "context_length": length,
                    "depth": depth,
                    "needle_position": place,
                    "num_needle_tokens": 0 if depth is None else NUM_NEEDLE,
                    "needle_answer_positions": answers,
                    "answer_position": length - NUM_ANSWER,
                    "num_answer_tokens": NUM_ANSWER,
                    "answer": "12",
                }
            )
    return rows


def losses(row: dict, length: int) -> list[dict]:
    """One target more than the answer has tokens; the source's own loss cancels against its control."""
    of_source = SOURCES.index(row["source_document_id"])
    loss = LOSS_WITHOUT + of_source - GAIN.get(row["depth"], 0.0)
    return [
        {
            "document_id": row["document_id"],
            "chunk_index": 0,
            "target_position": position,
            "target_token_id": 1,
            "num_long_context_tokens": position,
            "short_context_loss": 9.0,
            "long_context_loss": loss,
            "loss_difference": 9.0 - loss,
        }
        for position in range(length - NUM_ANSWER - 1, length)
    ]


def selected(row: dict, length: int) -> list[dict]:
    """leave_one_out takes the answer's tokens first, its last one before the others; nearest never does."""
    rows = []
    for position in range(length - NUM_ANSWER - 1, length):
        far = list(range(position - SHORT))[::-1]
        found = [place for place in reversed(row["needle_answer_positions"]) if place in far]
        for rule, order in (
            ("leave_one_out", found + [place for place in far if place not in found]),
            ("nearest", [place for place in far if place not in found]),
        ):
            rows += [
                {
                    "document_id": row["document_id"],
                    "chunk_index": 0,
                    "target_position": position,
                    "rule": rule,
                    "far_context": "own",
                    "rank": rank + 1,
                    "context_position": place,
                    "distance": position - place,
                    "context_token_id": 1,
                    "influence": None,
                }
                for rank, place in enumerate(order[: KS[-1]])
            ]
    return rows


def write_needle_results(folder: Path) -> Path:
    """What plant_signs --needles and the measuring stages leave, for every length."""
    for length in LENGTHS:
        here = folder / f"length-{length}"
        truth = rows_of_needles(length)
        write_truth(here / "data", NEEDLES_FILE, truth)
        for stage, measure in (("loss_differences", losses), ("influential_tokens", selected)):
            rows = [target for row in truth for target in measure(row, length)]
            settings = {"short_context_length": SHORT, "long_context_length": length}
            write_tables(here / "results", stage, "copier", settings, {stage: rows})
    return folder
