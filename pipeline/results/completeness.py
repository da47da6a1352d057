"""Whether the files of an artefact are all there, marked and whole; what is not is refused by name."""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import RENAMED, InputError
from pipeline.results.made_by import SETTINGS_FILE, read_settings_file, why_foreign
from pipeline.results.marks import (
    MANIFEST,
    FileRecord,
    Mark,
    damage,
    exported_name,
    read_manifest,
    read_marks,
    shard_name,
    shard_of_name,
)
from pipeline.results.missing import as_ranges
from pipeline.results.names import ATTENTION_HEADS
from pipeline.results.partial import ADVICE, add_note, is_allowed

_MODEL = "model="


@dataclass
class ModelFiles:
    """The files of one model's results of one artefact, as marks or a manifest tell them."""

    folder: Path
    stage: str | None
    """None of an exported folder."""
    num_shards: int
    marked: dict[Path, FileRecord] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    """Shards without a completion mark."""
    foreign: list[Path] = field(default_factory=list)
    """Parquet files that no shard of this result is called."""

    @property
    def model(self) -> str:
        """Its name."""
        return self.folder.name.removeprefix(_MODEL)

    @property
    def extent(self) -> str:
        """Such as "3 of 4 shards of loss_differences of model 'a'"."""
        num_there = self.num_shards - len(self.missing)
        return f"{num_there} of {self.num_shards} shards of {self.folder.parent.name} of model '{self.model}'"


def run_again(stage: str | None) -> str:
    """What gets the shards that are not there, or were damaged since; of an exported folder where None."""
    if stage is None:
        return f"copy the folder that {MANIFEST} is of again"
    program = "influential_tokens" if stage == ATTENTION_HEADS else stage
    return f"run python pipeline/{program}.py again with the flags it was run with"


def whole_files(results: Path, artefact: str, models: Collection[str] | None = None) -> list[Path]:
    """The Parquet files of an artefact, all of them marked, and each found to be what its mark says.

    Of an export that is one file with all models, also where only some are asked for. Where partial results
    are allowed (`pipeline.results.partial`), those of the shards that are complete.

    Args:
        results: the results folder.
        artefact: a name of `SCHEMAS`.
        models: look at these only; at all where None.

    Raises:
        InputError: names a file that is missing, damaged or foreign, or the result that is not complete.
    """
    refuse_former_name(results, artefact)
    if (exported := _exported_file(results, artefact)) is not None:
        return [exported]
    _refuse_other_folders(results / artefact)
    files_of_path: dict[Path, ModelFiles] = {}
    for files in files_of(results, artefact, models):
        _refuse_foreign(files)
        if files.missing:
            _refuse_incomplete(results, files)
        files_of_path |= dict.fromkeys(files.marked, files)
    with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter free
        records = [files.marked[path] for path, files in files_of_path.items()]
        wrongs = list(pool.map(damage, files_of_path, records))
    for (path, files), wrong in zip(files_of_path.items(), wrongs, strict=True):
        if wrong is not None:
            raise _damaged(results, path, files, wrong)
    return sorted(files_of_path)


def _exported_file(results: Path, artefact: str) -> Path | None:
    """The file of an export that holds all models' rows of an artefact; None where there is no such file.

    Raises:
        InputError: it is damaged, not listed as part of the export, or not all that is here of the artefact.
    """
    path = results / exported_name(artefact)
    record = read_manifest(results).get(path.name)
    if record is None:
        if path.exists():
            raise InputError(
                f"{path} is not listed in {results / MANIFEST}; move it away, or vouch for what is there"
                f" with: python -m pipeline.results.exported {results}"
            )
        return None
    if any((results / artefact).rglob("*.parquet")):
        raise InputError(f"{path} and {results / artefact} both hold {artefact}; keep one of them")
    if wrong := damage(path, record):
        raise InputError(f"{wrong}; {run_again(None)}")
    return path


def refuse_export(results: Path) -> None:
    """Refuse to measure into an export, whose manifest says that it holds all that there is.

    Raises:
        InputError: it is one.
    """
    if any("/" not in path for path in read_manifest(results)):
        raise InputError(f"{results} is an export of results ({MANIFEST}); choose another --results folder")


def refuse_former_name(results: Path, artefact: str) -> None:
    """Refuse results that an earlier version wrote of this artefact, under the name it then had.

    Raises:
        InputError: says what they are called now.
    """
    for former, now in RENAMED.items():
        if now == artefact and (results / former).is_dir():
            raise InputError(
                f"{results / former} is of an earlier version; {former} is called {now} now: measure it again"
                f" into another --results folder, with python pipeline/{now}.py"
            )


def _damaged(results: Path, path: Path, files: ModelFiles, wrong: str) -> InputError:
    if files.stage is not None:
        made_by = read_settings_file(results / "_stages" / files.stage / files.folder.name)
        if changes := why_foreign(path, made_by):
            return InputError(
                f"{path} was written by another run, with other settings: {changes}; move it away, then"
                f" {run_again(files.stage)}"
            )
    return InputError(f"{wrong}; {run_again(files.stage)}{', which measures it anew' if files.stage else ''}")


def _refuse_other_folders(folder: Path) -> None:
    for path in sorted(folder.rglob("*.parquet")):
        if path.parent.parent != folder or not path.parent.name.startswith(_MODEL):
            raise InputError(
                f"{path} lies in no folder {folder}/model=NAME, so it is not known whose it is; move it"
                " there, or out of the results"
            )


def _refuse_foreign(files: ModelFiles) -> None:
    if files.foreign:
        raise InputError(
            f"{files.foreign[0]} is none of the {files.num_shards} shards of model '{files.model}'; it came"
            " there by hand or of another run: move it away"
        )


def _refuse_incomplete(results: Path, files: ModelFiles) -> None:
    if is_allowed():
        add_note(files.extent)
        return
    if len(files.missing) == files.num_shards and any(files.folder.glob("*.parquet")):
        raise InputError(
            f"{files.folder} holds Parquet files, and {results / '_stages'} no completion mark of them: they"
            f" may be a part; copy the whole results folder, {run_again(files.stage)}, {ADVICE}; or vouch for"
            f" what is there with: python -m pipeline.results.exported {results}"
        )
    raise InputError(
        f"{results} holds {files.extent} (without {as_ranges(files.missing)}); {run_again(files.stage)},"
        f" {ADVICE}"
    )


def files_of(results: Path, artefact: str, models: Collection[str] | None = None) -> Iterator[ModelFiles]:
    """The files of each model's results of an artefact, also of a model that lacks all of them."""
    manifest = read_manifest(results)
    stages = _stages_that_write(results, artefact)
    folders = {folder.name for folder in (results / artefact).glob(f"{_MODEL}*") if folder.is_dir()}
    begun = {
        path.parent.name: path.parent.parent.name
        for stage in stages
        for path in (results / "_stages" / stage).glob(f"{_MODEL}*/*")
        if path.suffix == ".done"
        or path.name == SETTINGS_FILE
        and path.relative_to(results).as_posix() not in manifest
    }
    for name in sorted(folders | begun.keys()):
        if models is not None and name.removeprefix(_MODEL) not in models:
            continue
        folder = results / artefact / name
        stage = begun.get(name, artefact)
        marks = read_marks(results / "_stages" / stage / name)
        of_manifest = {
            results / path: record
            for path, record in manifest.items()
            if path.startswith(f"{artefact}/{name}/")
        }
        if marks:
            yield _by_marks(folder, artefact, marks)
        elif of_manifest:
            yield _by_manifest(folder, of_manifest)
        else:
            yield _unmarked(folder, stage)


def _stages_that_write(results: Path, artefact: str) -> list[str]:
    """The stages whose marks tell of the artefact, and the one of its name."""
    stages = [artefact]
    for folder in sorted((results / "_stages").glob("*")):
        # The marks of one model are alike.
        marks = (next(iter(read_marks(of_model)), None) for of_model in folder.glob(f"{_MODEL}*"))
        if folder.name != artefact and any(mark and artefact in mark.files for mark in marks):
            stages.append(folder.name)
    return stages


def _by_marks(folder: Path, artefact: str, marks: Sequence[Mark]) -> ModelFiles:
    num_shards = marks[0].num_shards
    files = ModelFiles(folder, marks[0].stage, num_shards)
    for mark in marks:
        if artefact in mark.files:
            path = folder / f"{shard_name(mark.shard_index, mark.num_shards)}.parquet"
            files.marked[path] = mark.files[artefact]
    files.missing = sorted(set(range(num_shards)) - {mark.shard_index for mark in marks})
    # Of a shard without a mark the file may be there: its stage is writing it, or was killed.
    unmarked = {folder / f"{shard_name(index, num_shards)}.parquet" for index in files.missing}
    of_other_deals = {path for path in files.marked if not path.stem.endswith(f"-of-{num_shards:05d}")}
    files.foreign = sorted({*folder.glob("*.parquet")} - files.marked.keys() - unmarked | of_other_deals)
    return files


def _by_manifest(folder: Path, marked: dict[Path, FileRecord]) -> ModelFiles:
    shards = [shard for path in marked if (shard := shard_of_name(path.stem)) is not None]
    num_shards = max((count for _, count in shards), default=len(marked))
    missing = sorted(set(range(num_shards)) - {index for index, _ in shards})
    foreign = sorted(set(folder.glob("*.parquet")) - marked.keys())
    return ModelFiles(folder, None, num_shards, marked, missing, foreign)


def _unmarked(folder: Path, stage: str) -> ModelFiles:
    shards = [shard for path in folder.glob("*.parquet") if (shard := shard_of_name(path.stem)) is not None]
    num_shards = max((count for _, count in shards), default=1)
    return ModelFiles(folder, stage, num_shards, missing=list(range(num_shards)))
