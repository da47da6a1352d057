"""Text to a folder of training tokens and evaluation documents: all that stands between reading and files."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.results.files import write_json
from pipeline.text.documents import Source, read_documents
from pipeline.text.encoding import EncodedDocument, Encoder
from pipeline.text.evaluation_documents import (
    EvaluationDocument,
    EvaluationSample,
    write_evaluation_documents,
)
from pipeline.text.manifest import (
    EVALUATION_FILE,
    MANIFEST_FILE,
    TRAIN_FOLDER,
    make_manifest,
    refuse_empty_parts,
)
from pipeline.text.packed_shards import PackedShardWriter
from pipeline.text.split import Part, Split, distinct_documents
from pipeline.text.tasks import TokenizationTask
from pipeline.text.token_counts import count_tokens, write_token_counts
from pipeline.text.tokenizer import DocumentTokenizer
from pipeline.text.unfinished import Unfinished


@dataclass(frozen=True)
class TokenizedDataWriter:
    """What one run of tokenize_c4 reads and writes."""

    folder: Path
    task: TokenizationTask
    sources: Sequence[Source]
    """The task's own."""
    evaluation_sources: Sequence[Source]
    """The same for all tasks, which all leave them out of training; task 0 writes them."""
    configuration: dict[str, Any]
    """`settings` and `inputs` as in the manifest; limits are those of the whole, not the task's."""
    num_workers: int = 1

    @property
    def _settings(self) -> Mapping[str, Any]:
        return self.configuration["settings"]

    @cached_property
    def split(self) -> Split:
        """How documents are parted.

        Raises:
            InputError: the evaluation source holds no text.
        """
        has_fraction = not self.evaluation_sources
        return Split(
            evaluation_fraction=self._settings["evaluation_fraction"] if has_fraction else 0.0,
            seed=self._settings["seed"] if has_fraction else 0,
            evaluation_ids=self._reserved_ids(),
            max_documents=self.task.share_of(self._settings["max_documents"]),
        )

    @property
    def max_tokens(self) -> int | None:
        """Training tokens at most, EOS included."""
        return self.task.share_of(self._settings["max_tokens"])

    def _reserved_ids(self) -> frozenset[str]:
        documents = read_documents(
            self.evaluation_sources, Counter(), skip_malformed=self._settings["skip_malformed"]
        )
        reserved = islice(
            distinct_documents(documents, Counter()), self._settings["max_evaluation_documents"]
        )
        ids = frozenset(document.document_id for document in reserved)
        if self.evaluation_sources and not ids:
            raise InputError(f"no evaluation documents: {self.evaluation_sources[0].name} holds no text")
        return ids

    def training_texts(self) -> Iterator[str]:
        """The texts that train, for a tokenizer to be trained on; read once more when they are encoded."""
        documents = read_documents(self.sources, Counter(), skip_malformed=self._settings["skip_malformed"])
        assigned = self.split.assign(documents, Counter())
        return (document.text for part, document in assigned if part == "train")

    def write(
        self,
        tokenizer: DocumentTokenizer,
        unfinished: Unfinished,
        advance: Callable[[int, int], object],
        tell: Callable[[int], object] = lambda num_characters: None,
    ) -> dict[str, Any]:
        """Encode and write everything.

        Args:
            tokenizer: turns text to tokens.
            unfinished: what earlier runs have written; kept up to date in the folder.
            advance: told how many training documents and tokens have been written since the last call.
            tell: told of all characters encoded so far, where a document takes long.

        Returns:
            The manifest, the completion marker: whoever finds it may trust every other file.

        Raises:
            InputError: bad documents, or none for one of the parts.
        """
        tally: Counter[str] = Counter(
            train_documents=unfinished.num_train_documents,
            empty=unfinished.num_empty,
            empty_train=unfinished.num_empty,
        )
        sample = EvaluationSample(self._settings["max_evaluation_documents"])
        encoder = Encoder(
            tokenizer, self.num_workers, skip_malformed=self._settings["skip_malformed"], tell=tell
        )
        writer = self._shard_writer(tokenizer, unfinished)
        advance(unfinished.num_train_documents, writer.num_tokens)
        with encoder, writer:
            assigned = self._assigned(encoder, unfinished, tally)
            for num_tokens in self._write_tokens(assigned, writer, sample, unfinished.num_taken, tally):
                advance(1, num_tokens)
                if len(writer.whole_paths) > len(unfinished.part_names):
                    self._leave(unfinished, writer, encoder.num_records, tally)
        tally["train_tokens"] = writer.num_tokens
        self._write_evaluation(sample, tally)
        paths = [*writer.paths, *self._write_token_counts(tokenizer, writer)]
        manifest = make_manifest(self.folder, self.configuration, tokenizer, paths, tally)
        write_json(self.folder / MANIFEST_FILE, manifest)
        return manifest

    def _shard_writer(self, tokenizer: DocumentTokenizer, unfinished: Unfinished) -> PackedShardWriter:
        """A writer of the training tokens, behind the whole files of earlier runs."""
        return PackedShardWriter(
            self.folder / TRAIN_FOLDER,
            tokenizer.token_dtype,
            tokenizer.eos_token_id,
            self._settings["tokens_per_part"],
            [self.folder / name for name in unfinished.part_names],
        )

    def _write_evaluation(self, sample: EvaluationSample, tally: Counter[str]) -> None:
        """Write the documents that evaluate, and count them; all else is counted already."""
        documents = sample.documents()
        tally["evaluation_documents"] = len(documents)
        tally["evaluation_tokens"] = sum(len(document.token_ids) for document in documents)
        tally["beyond_max_evaluation_documents"] = sample.num_left_out
        if self.task.is_whole:  # a task may miss a part that others have
            refuse_empty_parts(tally, self.configuration)
        write_evaluation_documents(self.folder / EVALUATION_FILE, documents)

    def _leave(
        self, unfinished: Unfinished, writer: PackedShardWriter, num_records: int, tally: Counter[str]
    ) -> None:
        """Say in the folder how far this run is, for the next to go on from here."""
        unfinished.describe(
            self.folder, *(path.relative_to(self.folder).as_posix() for path in writer.whole_paths)
        )
        unfinished.num_records = num_records
        unfinished.num_train_documents = tally["train_documents"]
        unfinished.num_empty = tally["empty_train"]
        unfinished.write(self.folder, self.configuration)

    def _write_token_counts(self, tokenizer: DocumentTokenizer, writer: PackedShardWriter) -> list[Path]:
        """The file of the counts, where there are training tokens."""
        if not writer.paths:
            return []
        counts_V = count_tokens(
            writer.paths, tokenizer.token_dtype, tokenizer.vocabulary_size, tokenizer.eos_token_id
        )
        return [write_token_counts(self.folder, counts_V)]

    def _assigned(
        self, encoder: Encoder, unfinished: Unfinished, tally: Counter[str]
    ) -> Iterator[tuple[Part, EncodedDocument]]:
        """Every document with its part, first those of the evaluation source."""
        own = self.evaluation_sources if self.task.index == 0 else []
        reserved = islice(
            distinct_documents(encoder.encode(own, tally), tally), self._settings["max_evaluation_documents"]
        )
        return chain(
            (("evaluation", document) for document in reserved),
            self.split.assign(
                encoder.encode(self.sources, tally, unfinished.num_records, self.split.evaluates), tally
            ),
        )

    def _write_tokens(
        self,
        assigned: Iterable[tuple[Part, EncodedDocument]],
        writer: PackedShardWriter,
        sample: EvaluationSample,
        num_written: int,
        tally: Counter[str],
    ) -> Iterator[int]:
        """Training documents go to `writer`, the others to `sample`; yields each training one's tokens.

        The first `num_written` of training were written or counted by an earlier run.
        """
        max_tokens, num_met = self.max_tokens, 0
        for part, document in assigned:
            num_met += part == "train"
            if part == "train" and num_met <= num_written:
                continue
            num_tokens = len(document.token_ids)
            if num_tokens == 0:
                tally["empty"] += 1
                tally["empty_train"] += part == "train"
            elif part == "evaluation":
                token_ids = document.token_ids.astype(np.int32)
                sample.add(EvaluationDocument(document.document_id, token_ids, document.url))
            elif max_tokens is not None and writer.num_tokens + num_tokens + 1 > max_tokens:
                return
            else:
                writer.add(document.token_ids)
                tally["train_documents"] += 1
                yield num_tokens + 1
