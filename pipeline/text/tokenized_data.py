"""How other stages read the folder that tokenize_c4 leaves."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from pipeline.errors import InputError
from pipeline.text.evaluation_documents import EvaluationDocument, read_evaluation_documents
from pipeline.text.manifest import EVALUATION_FILE, TRAIN_FOLDER, check_sizes, read_manifest


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
            raise InputError(
                f"no tokenized data in {folder}; run pipeline/tokenize_c4.py --out {folder} first"
            )
        check_sizes(folder, manifest)
        files = manifest["files"]
        train_names = [name for name in files if name.startswith(f"{TRAIN_FOLDER}/")]
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
