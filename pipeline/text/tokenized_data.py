"""How other stages read the folder that tokenize_c4 leaves."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.text.evaluation_documents import (
    EvaluationDocument,
    read_evaluation_documents,
    read_evaluation_lengths,
)
from pipeline.text.manifest import EVALUATION_FILE, changed_settings, check_sizes, read_manifest
from pipeline.text.sharding import SHARDS_FOLDER


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

    @classmethod
    def open(cls, folder: Path) -> "TokenizedData":
        """The data in `folder`.

        Raises:
            InputError: the folder holds no complete tokenized data, or files of other sizes.
        """
        manifest = read_manifest(folder)
        if manifest is None:
            raise InputError(f"no tokenized data in {folder}; {_what_to_run(folder)} first")
        check_sizes(folder, manifest)
        files = manifest["files"]
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
        )

    def evaluation_documents(self) -> list[EvaluationDocument]:
        """All evaluation documents, ordered by ID, which is a random but fixed order."""
        return read_evaluation_documents(self.folder / EVALUATION_FILE)

    def evaluation_lengths(self) -> list[int]:
        """Tokens of each of them, in their order, without reading the tokens."""
        return read_evaluation_lengths(self.folder / EVALUATION_FILE)


def _what_to_run(folder: Path) -> str:
    command = f"run pipeline/tokenize_c4.py --out {folder}"
    return f"its shards are not merged: {command} --merge" if (folder / SHARDS_FOLDER).exists() else command


def is_complete(folder: Path, configuration: Mapping[str, Any]) -> bool:
    """Whether `folder` holds the whole data that `configuration`, its settings and inputs, leads to.

    Raises:
        InputError: it holds data of another configuration, or misses some of its files.
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
    check_sizes(folder, manifest)
    return True
