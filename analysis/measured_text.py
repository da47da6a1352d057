"""The text that results were measured on: the data's chunks, checked to be those that were measured."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.results.folder import missing_artefact, read_made_by
from pipeline.text.chunks import Chunk, chunks_of, long_enough_documents
from pipeline.text.manifest import TOKENIZER_FILE
from pipeline.text.tokenized_data import EvaluationDocument, TokenizedData
from pipeline.text.tokenizer import DocumentTokenizer, load_tokenizer

_GEOMETRY = ("short_context_length", "long_context_length", "targets_per_chunk")
_EXTENT = ("num_documents", "max_chunks_per_document")


def data_of(results: Path, data: Path | None) -> TokenizedData:
    """The tokenized data of a results folder: that in `data`, or the folder `data` beside it where None.

    Raises:
        InputError: there is none.
    """
    beside = results.parent / "data"
    if data is None and not beside.is_dir():
        raise InputError(
            f"there is no folder {beside}; name the tokenized data that {results} was measured on with --data"
        )
    return TokenizedData.open(data or beside)


@dataclass(frozen=True)
class MeasuredText:
    """What one stage measured, and with which lengths."""

    data: TokenizedData
    settings: Mapping[str, Any]
    """Those that decide which chunks were measured, and how; the same for all models."""

    @classmethod
    def open(cls, results: Path, stage: str, data: Path | None = None) -> "MeasuredText":
        """The text behind a stage's results.

        Args:
            results: the results folder.
            stage: "loss_differences" or "influential_tokens".
            data: the folder of tokenize_c4; that beside the results where None.

        Raises:
            InputError: there is no data, it is not that which was measured, or models were measured with
                other lengths or on other documents than each other.
        """
        made_by = read_made_by(results, stage)
        if not made_by:
            raise missing_artefact(results, stage)
        opened = data_of(results, data)
        names = [*_GEOMETRY, *_EXTENT]
        settings = [{name: made["settings"].get(name) for name in names} for made in made_by.values()]
        for (model, made), setting in zip(made_by.items(), settings, strict=True):
            if made["inputs"].get("evaluation_documents") != opened.evaluation_sha256:
                raise InputError(
                    f"{stage} of model '{model}' in {results} was not measured on the evaluation documents"
                    f" of {opened.folder}: their SHA-256 differs; name the folder that was its --data with"
                    " --data"
                )
            if setting != settings[0]:
                raise InputError(
                    f"{results} holds {stage} of models that were not measured alike: {setting} for"
                    f" '{model}', {settings[0]} for '{next(iter(made_by))}'; keep them in two folders"
                )
        return cls(opened, settings[0])

    @property
    def short_context_length(self) -> int:
        """s, tokens."""
        return int(self.settings["short_context_length"])

    @property
    def chunk_length(self) -> int:
        """ℓ, tokens."""
        return int(self.settings["long_context_length"])

    @property
    def tokenizer(self) -> DocumentTokenizer:
        """What made the tokens."""
        return load_tokenizer(self.data.folder / TOKENIZER_FILE)

    def chunks(self) -> Iterator[tuple[EvaluationDocument, Chunk]]:
        """Every measured chunk, with its null and its document, in the stage's own order."""
        documents = long_enough_documents(self.data, self.chunk_length, self.settings["num_documents"])
        for index, document in enumerate(documents):
            limits = self.chunk_length, self.settings["max_chunks_per_document"]
            for chunk in chunks_of(documents, index, *limits):
                yield document, chunk

    def targets_of(self, chunk: Chunk) -> list[int]:
        """Positions in the document of the chunk's targets."""
        end = chunk.start + self.chunk_length
        return list(range(end - int(self.settings["targets_per_chunk"]), end))
