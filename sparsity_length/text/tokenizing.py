"""What tokenize_c4.py does: text becomes training tokens and evaluation documents, resumed after a kill."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from sparsity_length.cli import (
    InputError,
    folder_path,
    fraction,
    logger,
    positive_int,
    progress,
    random_seed,
    whole_number,
)
from sparsity_length.results.files import (
    Task,
    describe_files,
    folder_lock,
    read_record,
    refuse_changes,
    refuse_replacing,
    sha256_of_files,
    write_bytes,
    write_json,
    write_text,
)
from sparsity_length.settings import setting, switch
from sparsity_length.text.folder import (
    EVALUATION_FILE,
    MANIFEST_FILE,
    TASKS_FOLDER,
    TOKENIZER_FILE,
    TRAIN_FOLDER,
    EvaluationDocument,
    TokenizedData,
    is_complete,
    made_by,
    task_folder,
    write_data_folder,
)
from sparsity_length.text.sources import Document, Source, open_sources, read_documents
from sparsity_length.text.tokenizer import (
    EOS_TOKENS,
    DocumentTokenizer,
    Reading,
    load_tokenizer,
    parse_tokenizer_name,
    tokenizer_files,
    train_bpe,
)

UNFINISHED_FILE = "unfinished.json"
DOCUMENTS_PER_BATCH = 256
BPE_TRAINING_CHARACTERS = 100_000_000
"""More text hardly changes which pairs of a corpus are frequent, and a hub stream has no end."""
TRAINS = "train_documents"
EVALUATES = "evaluation_documents"
Sorted = tuple[Document, str]
"""A document and what becomes of it: `TRAINS`, `EVALUATES`, or why it is left out, by the names of counts."""
_RECORDED = (
    "evaluation_fraction",
    "seed",
    "max_documents",
    "max_evaluation_documents",
    "tokens_per_part",
    "eos_token",
    "special_tokens",
    "tokenizer",
    "bos",
)


@dataclass(frozen=True, kw_only=True)
class Tokenizing(Reading):
    """Which text becomes which data: all of it, one of several tasks, or their merge."""

    out: Path = setting(folder_path, "folder to write")
    source: tuple[str, ...] | None = setting(
        str,
        "c4, embedded, or files or glob patterns in C4's schema (required, unless --merge)",
        None,
        many="+",
    )
    merge: bool = switch("merge the tasks in --out into one data set; needs no other flag")
    text_field: str | None = setting(
        str, "field or column of files that holds the text (default: text)", None, metavar="FIELD"
    )
    evaluation_source: tuple[str, ...] | None = setting(
        str,
        "the same, for evaluation documents (default: C4's validation split for c4, else a part of --source)",
        None,
        many="+",
    )
    evaluation_fraction: float | None = setting(fraction, "fraction of --source used for evaluation", 0.05)
    seed: int | None = setting(random_seed, "random seed of the split into training and evaluation", 0)
    max_documents: int | None = setting(
        positive_int,
        "largest number of training documents; C4's have about 430 tokens each (default: all)",
        None,
    )
    max_evaluation_documents: int = setting(
        positive_int,
        "largest number of evaluation documents: the first ones of --evaluation-source, or those of --source"
        " with the smallest hashes; the other evaluation documents of --source are not used at all",
        10_000,
    )
    tokenizer: str = setting(
        str,
        "olmo, a model's folder, a model on the hub (NAME or NAME@REVISION), a tokenizer.json file, or"
        " bpe:SIZE to train a new one on the training part",
        "olmo",
    )
    eos_token: str | None = setting(
        str,
        "token that ends documents (default: as the tokenizer's configuration says)",
        None,
        metavar="TOKEN",
    )
    tokens_per_part: int = setting(
        positive_int, "approximate size of a training file, in tokens", 100_000_000
    )
    task_index: int = setting(whole_number(0), "which of --num-tasks to do, counted from 0", 0)
    num_tasks: int = setting(positive_int, "number of tasks that share the files of --source", 1)

    @property
    def task(self) -> Task:
        """The part that is done; InputError if there is none such."""
        return Task(self.task_index, self.num_tasks)

    def resolve(self) -> dict[str, Any]:
        """What evaluates, which may be split off; refuse a text without an end, or a tokenizer a task."""
        if self.merge == bool(self.source):
            raise InputError("give --source, or --merge if the tasks in --out are all of it")
        is_whole = self.task.is_whole
        streams_c4 = "c4" in (self.source or ())
        if streams_c4 and is_whole and self.max_documents is None:
            raise InputError(
                "--source c4 streams 156 billion tokens; say where to stop with --max-documents, or divide it"
                " with --num-tasks"
            )
        if self.tokenizer.startswith("bpe:") and not is_whole:
            raise InputError(
                f"--tokenizer {self.tokenizer} would train another tokenizer in every task; train one first"
                " (the same command without --num-tasks, with --max-documents 50000 and another --out), and"
                " give the tokenizer.json that it writes"
            )
        evaluation_source = self.evaluation_source or (("c4",) if streams_c4 else None)
        nothing_is_split_off = {"evaluation_fraction": None, "seed": None} if evaluation_source else {}
        return {"evaluation_source": evaluation_source, **nothing_is_split_off}

    @property
    def as_metadata(self) -> dict[str, Any]:
        """What decides the data beside the contents of inputs, as all manifests have it."""
        given = self.as_given | {
            # Its name alone, as folders move; the files' SHA-256 are among the inputs.
            "tokenizer": Path(self.tokenizer).name,
            # Null at its default: older data does not record it.
            "bos": None if self.bos == "auto" else self.bos,
        }
        recorded = {name: given[name] for name in _RECORDED}
        # Data from before there was the flag does not record it.
        return recorded | ({"text_field": self.text_field} if self.text_field else {})


def check_input(asked: Tokenizing, is_next: bool) -> None:
    """Refuse a text that cannot be opened or has no end; and, as another command may make it, a tokenizer.

    That is looked for only if the command `is_next`.
    """
    if not is_next:
        _sources(asked)
    elif isinstance(tokenizer := _opened(asked)[-1], Path):
        _load(tokenizer, asked)


def left(asked: Tokenizing) -> list[str]:
    """What --out lacks of the data, which tasks may have written; other settings or text are refused.

    Text is read only if it is newer than the data; it may have been put away since.
    """
    lacking = [f"the tokens of {asked.out}"]
    manifest = read_record(asked.out / MANIFEST_FILE)
    if manifest is None:
        return lacking
    if asked.merge:
        return []
    # The command may be that of one task or of all: how the text was divided, the manifest says.
    tasks = {name: manifest["settings"].get(name) for name in ("num_tasks", "all_files")}
    configuration = manifest | {"settings": tasks | asked.as_metadata}
    with suppress(InputError):
        opened = _opened(asked)
        # The time of change, and not that of content, which a tool may set back (cp -p, tar).
        written = (asked.out / MANIFEST_FILE).stat().st_mtime
        if any(file.stat().st_ctime > written for file in _files(*opened)):
            configuration["inputs"] = _inputs(*opened)
    return [] if is_complete(asked.out, configuration) else lacking


def tokenize(asked: Tokenizing) -> None:
    """Write the tokenized data that is asked for, or find it complete."""
    if asked.merge:
        with folder_lock(asked.out, "--out"):
            merge_tasks(asked.out)
        return
    task = asked.task
    all_sources, evaluation_sources, tokenizer = _opened(asked)
    folder = task_folder(asked.out, task)
    sources = task.run_of(all_sources)
    refuse_replacing(
        [
            place / name
            for place in (folder, asked.out)
            for name in (TOKENIZER_FILE, EVALUATION_FILE, MANIFEST_FILE)
        ],
        _files(all_sources, evaluation_sources, tokenizer),
    )
    # Before the input is hashed: a folder that cannot be written into is refused at once.
    with folder_lock(asked.out, "--out", task):
        settings = asked.as_metadata
        if not task.is_whole:
            # What falls to a task depends on the whole list of files, which it does not otherwise record.
            names = "\n".join(source.name for source in all_sources)
            digest = sha256(names.encode()).hexdigest()[:16]
            settings |= {"num_tasks": task.num_tasks, "all_files": f"{len(all_sources)} files, {digest}"}
        configuration = {"settings": settings, "inputs": _inputs(sources, evaluation_sources, tokenizer)}
        if is_complete(folder, configuration):
            logger.info("%s is complete, nothing to do", folder)
        else:
            documents = partial(sorted_documents, asked, sources, evaluation_sources)
            # Whoever goes on reads the tokenizer that the first start left in the folder.
            if isinstance(tokenizer, int) and not (folder / UNFINISHED_FILE).exists():
                texts = _beginning(documents(), BPE_TRAINING_CHARACTERS)
                bpe = train_bpe(progress(texts, "training the tokenizer", "document"), tokenizer)
                write_text(folder / TOKENIZER_FILE, bpe.to_json())
            path = tokenizer if isinstance(tokenizer, Path) else folder / TOKENIZER_FILE
            write_tokens(folder, task, documents, _load(path, asked), configuration)
        # After the manifest: what a kill in between leaves, the next start removes.
        (folder / UNFINISHED_FILE).unlink(missing_ok=True)


def _load(path: Path, asked: Tokenizing) -> DocumentTokenizer:
    return load_tokenizer(path, bos=asked.bos, eos_token=asked.eos_token, special_tokens=asked.special_tokens)


def _sources(asked: Tokenizing) -> tuple[list[Source], list[Source]]:
    """The sources that train and that evaluate."""
    train = open_sources(asked.source or (), c4_split="train", text_field=asked.text_field)
    evaluation_source = asked.evaluation_source or ()
    return train, open_sources(evaluation_source, c4_split="validation", text_field=asked.text_field)


def _opened(asked: Tokenizing) -> tuple[list[Source], list[Source], Path | int]:
    """The sources that train and that evaluate, and the tokenizer, or the size of one to train."""
    return *_sources(asked), parse_tokenizer_name(asked.tokenizer)


def _files(
    sources: Sequence[Source], evaluation_sources: Sequence[Source], tokenizer: Path | int
) -> list[Path]:
    """All that is read on this machine."""
    files = [file for source in (*sources, *evaluation_sources) for file in source.files]
    return files + (tokenizer_files(tokenizer) if isinstance(tokenizer, Path) else [])


def _inputs(
    sources: Sequence[Source], evaluation_sources: Sequence[Source], tokenizer: Path | int
) -> dict[str, list[dict[str, str | None]]]:
    """Inputs by name and content; the hub's files have no SHA-256, their names hold the commit."""
    named: dict[str, list[tuple[str, tuple[Path, ...]]]] = {
        "source": [(source.name, source.files) for source in sources],
        "evaluation source": [(source.name, source.files) for source in evaluation_sources],
        "tokenizer": [(file.name, (file,)) for file in _files([], [], tokenizer)],
    }
    return {
        role: [
            {"file": name, "sha256": sha256_of_files(*files) if files else None}
            for name, files in progress(of_role, "hashing the input", "file")
        ]
        for role, of_role in named.items()
    }


def evaluates(document_id: str, fraction: float, seed: int) -> bool:
    """Whether a document is of the evaluation split: by seed and content, whatever else is in the source."""
    # Hashed anew: the IDs order evaluation documents, and the split must not depend on that order.
    digest = sha256(f"{seed}:{document_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def sorted_documents(
    asked: Tokenizing,
    sources: Sequence[Source],
    evaluation_sources: Sequence[Source],
    num_written: int = 0,
) -> Iterator[Sorted]:
    """Every document in order, those of the evaluation source first, in task 0.

    The first `num_written` that train are passed over; the last is that of --max-documents. `sources` are the
    task's own; those for evaluation are the same for all tasks.
    """
    seen: dict[str, str] = {}
    """ID -> as what the same text counts that comes again."""
    # Every task reads them, as each must leave them out of its own training text.
    for document in read_documents(evaluation_sources):
        if asked.task_index == 0:
            yield document, "duplicate" if document.document_id in seen else EVALUATES
        seen[document.document_id] = "in_evaluation_source"
        if len(seen) == asked.max_evaluation_documents:
            break
    if evaluation_sources and not seen:
        raise InputError(f"no evaluation documents: {evaluation_sources[0].name} holds no text")
    # The task's part: of 10 documents in three tasks 3, 3 and 4.
    most = len(asked.task.run_of(range(asked.max_documents or sys.maxsize)))
    num_train = 0
    for document in chain.from_iterable(source.documents() for source in sources):
        if num_train == most:
            return
        if not document.text.strip():
            yield document, "blank"
            continue
        is_split_off = evaluates(document.document_id, asked.evaluation_fraction or 0, asked.seed or 0)
        what = seen.get(document.document_id, EVALUATES if is_split_off else TRAINS)
        seen[document.document_id] = "duplicate"
        num_train += what == TRAINS
        if what != TRAINS or num_train > num_written:
            yield document, what


def _beginning(documents: Iterator[Sorted], num_characters: int) -> Iterator[str]:
    """The first texts that train, whole ones, for a tokenizer to be trained on."""
    for document, what in documents:
        if what == TRAINS:
            yield document.text
            num_characters -= len(document.text)
            if num_characters <= 0:
                return


def encoded(tokenizer: DocumentTokenizer, items: Iterator[Sorted]) -> Iterator[tuple[Sorted, np.ndarray]]:
    """Items in order with their token IDs, encoded by batches on all cores."""
    while batch := list(islice(items, DOCUMENTS_PER_BATCH)):
        yield from zip(batch, tokenizer.encode([document.text for document, _ in batch]), strict=True)


def write_tokens(
    folder: Path,
    task: Task,
    documents: Callable[[int], Iterator[Sorted]],
    tokenizer: DocumentTokenizer,
    configuration: Mapping[str, Any],
) -> None:
    """Encode and write all that an interrupted run has not written, the manifest last.

    Training documents stand one after another, each followed by EOS, in train/part-00000.npy and so on:
    [5, 6] and [7] with EOS 0 are the integers 5 6 0 7 0. A part ends with the document that fills it, so
    that no document is divided; it is held in memory until then.

    An interrupted run leaves its whole training files and, in unfinished.json, how far they reach. The same
    command reads the text from its start once more, for what trains depends on all that came before; but it
    encodes only documents that evaluate, and those behind the last whole training file.
    """
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"{tokenizer.name} has no token {' or '.join(EOS_TOKENS)} to end a document; name the one"
            " that it has with --eos-token"
        )
    begun = read_record(folder / UNFINISHED_FILE) or {**configuration, "files": {}, TRAINS: 0}
    refuse_changes(
        f"{folder} holds unfinished data",
        made_by(begun),
        made_by(configuration),
        "--out folder, or remove it",
    )
    files = begun["files"]
    dtype = tokenizer.token_dtype.newbyteorder("<")
    eos = np.array([tokenizer.eos_token_id], dtype).tobytes()
    part = bytearray()
    num_tokens = sum(whole["bytes"] for whole in files.values()) // dtype.itemsize
    counts = Counter[str](
        {TRAINS: begun[TRAINS], "train_tokens": num_tokens, "train_unknown": begun.get("train_unknown", 0)}
    )
    sample: dict[str, EvaluationDocument] = {}
    with progress(None, "tokenizing", "token", initial=num_tokens) as bar:
        for (document, what), token_ids in encoded(tokenizer, documents(begun[TRAINS])):
            counts[what] += 1
            if what == EVALUATES:
                sample[document.document_id] = EvaluationDocument(
                    document.document_id, token_ids, document.url
                )
            elif what == TRAINS:
                # Bytes, not a list of arrays: what is held is what is written, 2 bytes per token for uint16.
                part += token_ids.astype(dtype).tobytes() + eos
                counts["train_tokens"] += len(token_ids) + 1
                counts["train_unknown"] += tokenizer.num_unknown(token_ids)
                bar.update(len(token_ids) + 1)
                if len(part) >= configuration["settings"]["tokens_per_part"] * dtype.itemsize:
                    _write_part(folder, part, files)
                    # First the part, then the record: a kill in between has the same part written again.
                    begun |= {name: counts[name] for name in (TRAINS, "train_unknown")}
                    write_json(folder / UNFINISHED_FILE, begun)
    if part:
        _write_part(folder, part, files)
    _finish(folder, sample, files, counts, tokenizer, configuration, task.is_whole)


def _write_part(folder: Path, part: bytearray, files: dict[str, Any]) -> None:
    """Write the next part, add it to `files` as the manifest describes it, and empty it.

    Described now, a bit that flips until the run is finished is noticed.
    """
    path = folder / TRAIN_FOLDER / f"part-{len(files):05d}.npy"
    write_bytes(path, part)
    files |= describe_files(folder, [path])
    part.clear()


def _finish(
    folder: Path,
    sample: Mapping[str, EvaluationDocument],
    files: Mapping[str, Any],
    counts: Mapping[str, int],
    tokenizer: DocumentTokenizer,
    configuration: Mapping[str, Any],
    is_whole: bool,
) -> None:
    """Write what stands beside the training files, the manifest last.

    Data that cannot both train and evaluate are refused; but a task may miss a part that others have.
    """
    # The smallest IDs: these are hashes, so a random sample, the same in whatever order they came.
    max_evaluation = configuration["settings"]["max_evaluation_documents"]
    documents = [sample[name] for name in sorted(sample)[:max_evaluation]]
    if is_whole and not (documents and counts[TRAINS]):
        num_shared = counts["in_evaluation_source"]
        shared = f" ({num_shared} of --source are in --evaluation-source, too)" if num_shared else ""
        raise InputError(
            f"{counts[TRAINS]} documents train{shared} and {len(documents)} evaluate; give more text, a"
            " larger limit, or another --evaluation-fraction or --evaluation-source"
        )
    write_data_folder(folder, documents, files, tokenizer, configuration, counts, "tokenize_c4")


def merge_tasks(out: Path) -> None:
    """Write the manifest, the evaluation documents and the tokenizer of all tasks in `out`.

    Missing tasks are refused, and those made otherwise than others.
    """
    # 00003-of-00128
    divisions = {int(folder.name[-5:]) for folder in (out / TASKS_FOLDER).glob("*-of-*")}
    if len(divisions) != 1:
        raise InputError(
            f"{out} holds tasks of --num-tasks {' and '.join(map(str, sorted(divisions))) or 'no number'};"
            " run sparsity tokenize_c4 with one, and remove the folders of another"
        )
    (num_tasks,) = divisions
    folders = [task_folder(out, Task(index, num_tasks)) for index in range(num_tasks)]
    if missing := [
        str(index) for index, folder in enumerate(folders) if not (folder / MANIFEST_FILE).exists()
    ]:
        raise InputError(
            f"{out} misses {len(missing)} of {num_tasks} tasks: --task-index {', '.join(missing)};"
            " run these, then --merge again"
        )
    tasks = [TokenizedData.open(folder) for folder in folders]
    first = tasks[0].manifest
    counts = Counter[str]()
    found: dict[str, EvaluationDocument] = {}
    files: dict[str, Any] = {}
    for task in tasks:
        refuse_changes(
            f"{task.folder} holds a task",
            made_by(first, is_shared=True),
            made_by(task.manifest, is_shared=True),
            "--out for one",
        )
        counts.update(task.manifest["counts"])
        # Tasks do not see one another's text, so repetitions across tasks show here only.
        found |= {document.document_id: document for document in task.evaluation_documents()}
        files |= {
            (task.folder / name).relative_to(out).as_posix(): file
            for name, file in task.manifest["files"].items()
            if name.endswith(".npy")
        }
    sources = [file for task in tasks for file in task.manifest["inputs"]["source"]]
    configuration = {"settings": first["settings"], "inputs": first["inputs"] | {"source": sources}}
    _finish(out, found, files, counts, tasks[0].tokenizer(), configuration, is_whole=True)
