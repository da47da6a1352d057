"""How other stages read the folder that tokenize_c4 leaves."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.results.files import refuse_folder
from pipeline.results.provenance import sha256_of_files
from pipeline.text.evaluation_documents import (
    EvaluationDocument,
    read_evaluation_documents,
    read_evaluation_lengths,
)
from pipeline.text.manifest import (
    EVALUATION_FILE,
    TOKEN_COUNTS_FILE,
    TOKENIZER_FILE,
    changed_settings,
    read_manifest,
)
from pipeline.text.manifest_checks import damages, refuse_damage
from pipeline.text.tasks import TASKS_FOLDER

logger = logging.getLogger("pipeline")


@dataclass(frozen=True)
class TokenizedData:
    """Training tokens and evaluation documents of one corpus under one tokenizer."""

    folder: Path
    train_paths: list[Path]
    """Memory maps of `token_dtype` for olmo.data.MemMapDataset; documents each followed by EOS."""
    token_dtype: np.dtype
    vocabulary_size: int
    eos_token_id: int
    num_train_tokens: int
    """EOS included."""
    train_sha256: str
    evaluation_sha256: str
    token_counts_sha256: str | None = None
    """Of the counted training tokens; None in older folders, and where there are no training tokens."""

    @classmethod
    def open(cls, folder: Path) -> "TokenizedData":
        """The data in `folder`.

        Raises:
            InputError: the folder holds no complete tokenized data, files of other sizes, another tokenizer
                or a damaged manifest.
        """
        manifest = read_manifest(folder)
        if manifest is None:
            raise InputError(f"no tokenized data in {folder}; {_what_to_run(folder)} first")
        refuse_damage(folder, manifest)
        files = manifest["files"]
        # Small and read by many, so by its content at once; the tokens, where results record their SHA-256.
        small = {name: files[name] for name in files if name == TOKENIZER_FILE}
        refuse_damage(folder, {**manifest, "files": small}, verify=True)
        if EVALUATION_FILE not in files:
            raise InputError(
                f"the manifest of {folder} names no {EVALUATION_FILE}; {_what_to_run(folder)} again"
            )
        train_names = [name for name in files if name.endswith(".npy")]
        train_digests = "\n".join(files[name]["sha256"] for name in train_names)
        return cls(
            folder=folder,
            train_paths=[folder / name for name in train_names],
            token_dtype=np.dtype(manifest["token_dtype"]),
            vocabulary_size=manifest["vocabulary_size"],
            eos_token_id=manifest["eos_token_id"],
            num_train_tokens=manifest["counts"]["train_tokens"],
            train_sha256=sha256(train_digests.encode()).hexdigest(),
            evaluation_sha256=files[EVALUATION_FILE]["sha256"],
            token_counts_sha256=files.get(TOKEN_COUNTS_FILE, {}).get("sha256"),
        )

    def verify(self) -> None:
        """Read every file and compare it with its SHA-256.

        Raises:
            InputError: one differs.
        """
        manifest = read_manifest(self.folder)
        assert manifest is not None
        refuse_damage(self.folder, manifest, verify=True)

    def evaluation_documents(self) -> list[EvaluationDocument]:
        """All evaluation documents, ordered by ID, which is a random but fixed order.

        Raises:
            InputError: the file is not that whose SHA-256 stands in the manifest, and so in results; or a
                token is none of the vocabulary.
        """
        path = self.folder / EVALUATION_FILE
        if sha256_of_files(path) != self.evaluation_sha256:
            raise InputError(
                f"{path} has not the SHA-256 of its manifest: it is damaged, or another file; run the stage"
                " that wrote it again with the same flags, tokenize_c4 with --verify too"
            )
        documents = read_evaluation_documents(path)
        for document in documents:
            largest = int(document.token_ids.max(initial=0))
            if largest >= self.vocabulary_size or document.token_ids.min(initial=0) < 0:
                raise InputError(
                    f"{path} has the token {largest} in document {document.document_id}, and its manifest a"
                    f" vocabulary of {self.vocabulary_size}: they do not belong together"
                )
        return documents

    def evaluation_lengths(self) -> list[int]:
        """Tokens of each of them, in their order, without reading the tokens."""
        return read_evaluation_lengths(self.folder / EVALUATION_FILE)


def _what_to_run(folder: Path) -> str:
    command = f"run pipeline/tokenize_c4.py --out {folder}"
    return f"its tasks are not merged: {command} --merge" if (folder / TASKS_FOLDER).exists() else command


def is_complete(folder: Path, configuration: Mapping[str, Any], *, verify: bool = False) -> bool:
    """Whether `folder` holds the whole data that `configuration`, its settings and inputs, leads to.

    Where a file is missing or has another size, or with `verify` another SHA-256, the log says so.

    Raises:
        InputError: it holds data of another configuration, or a folder in the place of a file.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return False
    changes = changed_settings(manifest, configuration)
    if changes:
        raise InputError(
            f"{folder} holds data made otherwise: {'; '.join(changes)};"
            " choose another --out folder, or repeat the earlier command"
        )
    found = list(damages(folder, manifest["files"], verify=verify))
    for name in manifest["files"]:
        refuse_folder(folder / name)  # before anything is written anew
    for phrase in found:
        logger.warning("%s", phrase)
    if found:
        logger.warning("writing %s anew", folder)
    return not found
