"""Sources by name: `c4` on the hub, the `embedded` corpus, files on this machine."""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from glob import glob, has_magic
from pathlib import Path

from pipeline.errors import InputError, unknown_name
from pipeline.text.documents import C4_FILES, Source, parquet_records, stream_c4
from pipeline.text.embedded_corpus import embedded_files, embedded_records

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
