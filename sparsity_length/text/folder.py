"""The folder of one corpus under one tokenizer: what stands in it, how it is written, and how it is read.

Its files are those that pipeline/tokenize_c4.py lists; the manifest is written last. Shapes: V vocabulary,
L chunk.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from sparsity_length.cli import InputError, logger
from sparsity_length.results.files import (
    Task,
    describe_files,
    read_record,
    refuse_changes,
    refuse_damage,
    table_of,
    whole_or_absent,
    write_json,
    write_parquet,
    write_text,
)
from sparsity_length.results.schemas import SCHEMAS
from sparsity_length.results.versions import provenance
from sparsity_length.text.tokenizer import DocumentTokenizer

TASKS_FOLDER = "tasks"
TRAIN_FOLDER = "train"
NEEDLES_FILE = "needles/00000-of-00001.parquet"
EVALUATION_FILE = "evaluation_documents/00000-of-00001.parquet"
TOKENIZER_FILE = "tokenizer.json"
MANIFEST_FILE = "manifest.json"
COUNTS = (
    "train_documents",
    "train_tokens",
    "train_unknown",
    "evaluation_documents",
    "evaluation_tokens",
    "evaluation_unknown",
    "blank",
    "duplicate",
    "in_evaluation_source",
)


def task_folder(out: Path, task: Task) -> Path:
    """Folder of a task of tokenize_c4: `out` itself if there is only one."""
    return out if task.is_whole else out / TASKS_FOLDER / f"{task.index:05d}-of-{task.num_tasks:05d}"


@dataclass(frozen=True)
class EvaluationDocument:
    """A document to evaluate on; its tokens are int32 [S], without a final EOS."""

    document_id: str
    token_ids: np.ndarray
    url: str | None = None


def write_evaluation_documents(path: Path, documents: Iterable[EvaluationDocument]) -> None:
    """Write `documents` ordered by ID: the IDs are hashes, so any first few are a random sample."""
    ordered = sorted(documents, key=lambda document: document.document_id)
    columns: dict[str, list[Any]] = {
        "document_id": [document.document_id for document in ordered],
        "url": [document.url for document in ordered],
        "token_ids": [document.token_ids for document in ordered],
        "num_tokens": [len(document.token_ids) for document in ordered],
    }
    # Nothing that changes with the commit: the file's SHA-256 stands for the documents in other stages.
    with whole_or_absent(path) as temporary:
        write_parquet(temporary, table_of(columns, SCHEMAS["evaluation_documents"]))


def write_data_folder(
    folder: Path,
    documents: Sequence[EvaluationDocument],
    files: Mapping[str, Any],
    tokenizer: DocumentTokenizer,
    configuration: Mapping[str, Any],
    tally: Mapping[str, int],
    stage: str,
) -> None:
    """Write evaluation documents, tokenizer and, last, the manifest.

    `files` describes the others, those of training tokens in order; `configuration` has `settings` and
    `inputs`, all that decided the output; `tally` counts by the names in `COUNTS`; `stage` is the program.
    """
    write_evaluation_documents(folder / EVALUATION_FILE, documents)
    write_text(folder / TOKENIZER_FILE, tokenizer.to_json())
    counts = {
        **tally,
        "evaluation_documents": len(documents),
        "evaluation_tokens": sum(len(document.token_ids) for document in documents),
        "evaluation_unknown": sum(tokenizer.num_unknown(document.token_ids) for document in documents),
    }
    manifest = {
        "stage": stage,
        **configuration,
        "counts": {name: counts.get(name, 0) for name in COUNTS},
        "token_dtype": tokenizer.token_dtype.name,
        "vocabulary_size": tokenizer.vocabulary_size,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_ids": list(tokenizer.bos_token_ids),
        "files": {**files, **describe_files(folder, [folder / EVALUATION_FILE, folder / TOKENIZER_FILE])},
        **provenance(),
    }
    write_json(folder / MANIFEST_FILE, manifest)
    logger.info("%s: %s", folder, manifest["counts"])
    unknown = counts.get("train_unknown", 0) + counts["evaluation_unknown"]
    tokens = counts.get("train_tokens", 0) + counts["evaluation_tokens"]
    tokenizer.warn_of_unknown(unknown, tokens)


def made_by(record: Mapping[str, Any], *, is_shared: bool = False) -> dict[str, Any]:
    """Settings and inputs of a manifest, or of a run that will write one; `is_shared`: by all tasks.

    The contents of inputs count, not where the files lie; for the hub's C4, without a SHA-256, its names do.
    A setting that is off counts as one that there is not.
    """
    inputs = {
        # By place: the same files in another order are other data.
        role: {str(place): file["sha256"] or file["file"] for place, file in enumerate(files)}
        for role, files in record["inputs"].items()
        if not (is_shared and role == "source")
    }
    return {
        "settings": {name: value for name, value in record["settings"].items() if value},
        "inputs": inputs,
    }


@dataclass(frozen=True)
class TokenizedData:
    """Training tokens and evaluation documents of one corpus under one tokenizer."""

    folder: Path
    train_paths: list[Path]
    """Memory maps of `token_dtype` for olmo.data.MemMapDataset; documents each followed by EOS."""
    token_dtype: np.dtype
    vocabulary_size: int
    eos_token_id: int
    train_sha256: str
    evaluation_sha256: str
    bos_token_ids: tuple[int, ...] = ()
    """What the model's tokenizer puts before every text; no document holds it."""
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> "TokenizedData":
        """The data in `folder`; InputError if it holds no complete data, or files of other sizes."""
        manifest = read_record(folder / MANIFEST_FILE)
        if manifest is None:
            raise InputError(
                f"no tokenized data in {folder}; run sparsity tokenize --out {folder} first, and with"
                " --merge after its tasks"
            )
        files = manifest["files"]
        # Sizes only: the tokens of all of C4 are 0.3 TB, too much to read whenever a folder is opened.
        refuse_damage(folder / MANIFEST_FILE, manifest, files)
        train_names = [name for name in files if name.endswith(".npy")]
        # In the order of training: one number for all of the tokens.
        train_digests = "\n".join(files[name]["sha256"] for name in train_names)
        return cls(
            folder=folder,
            train_paths=[folder / name for name in train_names],
            token_dtype=np.dtype(manifest["token_dtype"]),
            vocabulary_size=manifest["vocabulary_size"],
            eos_token_id=manifest["eos_token_id"],
            train_sha256=sha256(train_digests.encode()).hexdigest(),
            evaluation_sha256=files[EVALUATION_FILE]["sha256"],
            bos_token_ids=tuple(manifest.get("bos_token_ids") or ()),
            manifest=manifest,
        )

    def whole(self, name: str) -> Path:
        """A file of the folder; InputError if its content is not what the manifest says, and so results."""
        files = {other: file for other, file in self.manifest["files"].items() if other == name}
        refuse_damage(self.folder / MANIFEST_FILE, self.manifest, files, verify=True)
        return self.folder / name

    def tokenizer(self) -> DocumentTokenizer:
        """The tokenizer that made the tokens."""
        return DocumentTokenizer(
            Tokenizer.from_file(str(self.whole(TOKENIZER_FILE))),
            eos_token_id=self.eos_token_id,
            bos="auto" if self.bos_token_ids else "none",
            name=f"the tokenizer of {self.folder}",
        )

    def evaluation_documents(self) -> list[EvaluationDocument]:
        """All evaluation documents, ordered by ID, which is a random but fixed order."""
        table = pq.read_table(
            self.whole(EVALUATION_FILE),
            columns=["document_id", "token_ids", "url"],
            partitioning=None,  # else a folder such as lr=1 above the file would become a column
        )
        # Arrow's own arrays are read-only, which torch does not take without a warning: hence the copies.
        return [
            EvaluationDocument(document_id, np.array(token_ids), url if isinstance(url, str) else None)
            for document_id, token_ids, url in table.to_pandas().itertuples(index=False)
        ]


def is_complete(folder: Path, configuration: Mapping[str, Any]) -> bool:
    """Whether `folder` holds the whole data that `configuration`, its settings and inputs, leads to.

    InputError if it holds data of another configuration, or a file is missing or of another size.
    """
    manifest = read_record(folder / MANIFEST_FILE)
    if manifest is None:
        return False
    refuse_changes(f"{folder} holds data", made_by(manifest), made_by(configuration), "--out folder")
    refuse_damage(folder / MANIFEST_FILE, manifest, manifest["files"])
    return True


def training_token_counts(data: TokenizedData) -> np.ndarray:
    """Occurrences of each token in the training files but EOS, which ends documents: int64 [V]."""
    counts_V = np.zeros(data.vocabulary_size, dtype=np.int64)
    for path in data.train_paths:
        tokens = np.fromfile(path, data.token_dtype.newbyteorder("<"))
        counts_V += np.bincount(tokens, minlength=data.vocabulary_size)
    # One a document, it would be among the most frequent tokens without being text.
    counts_V[data.eos_token_id] = 0
    return counts_V
