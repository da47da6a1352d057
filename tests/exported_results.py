"""Results folders that a test changed by hand, marked as whole as they lie there."""

import json
from pathlib import Path

from pipeline.results.files import file_record


def mark_as_whole(results: Path) -> Path:
    """Mark the files that are there, and nothing else, as the stages that wrote them would."""
    of_mark: dict[Path, dict[str, object]] = {mark: {} for mark in results.glob("_stages/*/*/*.done")}
    for path in results.glob("*/model=*/*.parquet"):
        artefact, model, name = path.relative_to(results).parts
        marks = [mark for mark in of_mark if (mark.parent.name, mark.stem) == (model, path.stem)]
        marks = [mark for mark in marks if artefact in mark.read_text()] or marks[:1]
        mark = next(iter(marks), results / "_stages" / artefact / model / f"{path.stem}.done")
        of_mark.setdefault(mark, {})[artefact] = {"name": name, **file_record(path, 0)}
    for mark, files in of_mark.items():
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(json.dumps({"files": files, "num_tasks": None}))
        if not files:
            mark.unlink()
    return results
