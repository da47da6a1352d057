"""What the measuring stages are run on in tests: documents of known tokens, a random OLMo, their flags.

Chunks of 12 tokens, the last 3 of each predicted, short contexts of 4. Of the documents, the first has two
chunks (tokens 0-11 and 12-23; the last 6 belong to none), the next two have one, the last two are too short.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from olmo.config import TrainConfig
from olmo.model import OLMo
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from sparsity_length.results.files import LOCK_FILE, describe_files
from sparsity_length.text.folder import TRAIN_FOLDER, EvaluationDocument, write_data_folder
from sparsity_length.text.tokenizer import DocumentTokenizer

Typed = Callable[..., tuple[object, str, str]]
"""The fixture `typed`."""
VOCABULARY_SIZE = 48
LONG = 12
TARGETS = 3
SHORT = 4
LENGTHS = ["--long-context-length", str(LONG), "--targets-per-chunk", str(TARGETS)]
FLAGS = {
    "loss_differences": [*LENGTHS, "--short-context-length", str(SHORT)],
    "influential_tokens": [
        *LENGTHS,
        "--short-context-length",
        str(SHORT),
        "--k",
        "1",
        "2",
        "5",
        "--ablation",
        "mask",
        "--rules",
        "leave_one_out",
        "random",
        "recency",
    ],
    "evaluate_tokens": [],
    "length_interference": [*LENGTHS, "--near-context-length", str(SHORT), "--placements", "own:3"],
}


def _tokens(seed: int, num_tokens: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, VOCABULARY_SIZE, size=num_tokens, dtype=np.int32)


# In the order of their IDs, which is the order that all stages take them in.
DOCUMENTS = {
    "00000000000000aa": _tokens(0, 30),
    "00000000000000bb": _tokens(1, 12),
    "00000000000000cc": _tokens(2, 13),
    "00000000000000dd": _tokens(3, 11),
    "00000000000000ee": _tokens(4, 11),
}
TARGET_POSITIONS = [
    (f"00000000000000{name}", chunk_index, chunk_index * LONG + place)
    for name, chunk_index in (("aa", 0), ("aa", 1), ("bb", 0), ("cc", 0))
    for place in (9, 10, 11)
]
"""(document_id, chunk_index, target_position) of every target, in order."""


def chunk_of(document_id: str, chunk_index: int, num_after: int = 0, length: int = LONG) -> np.ndarray:
    """The chunk, or that of the document so many places after among those that hold one: 1, its null."""
    names = [name for name, tokens in DOCUMENTS.items() if len(tokens) >= length]
    tokens = DOCUMENTS[names[(names.index(document_id) + num_after) % len(names)]].astype(np.int64)
    start = chunk_index % (len(tokens) // length) * length
    return tokens[start : start + length]


def with_far(own_L: np.ndarray, far_L: np.ndarray, place: int, short: int = SHORT) -> np.ndarray:
    """The chunk with another's distant context before the target at `place`."""
    return np.concatenate([far_L[: place - short], own_L[place - short :]])


def word_level(*words: str, unk_token: str = "<unk>") -> Tokenizer:
    """One token per word, in the order of their IDs."""
    vocabulary = {word: token_id for token_id, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unk_token))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def word_tokenizer(bos_token_ids: Sequence[int] = ()) -> Tokenizer:
    """The text "w7 w12" has the tokens 7 and 12."""
    tokenizer = word_level(*(f"w{token_id}" for token_id in range(VOCABULARY_SIZE)), unk_token="w0")
    if bos_token_ids:
        names = [f"w{token_id}" for token_id in bos_token_ids]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*names, "$A"], special_tokens=[*zip(names, bos_token_ids, strict=True)]
        )
    return tokenizer


def write_folder(
    folder: Path,
    documents: Sequence[EvaluationDocument],
    tokenizer: DocumentTokenizer,
    train_token_ids: Sequence[Sequence[int]] = (),
) -> Path:
    """What tokenize_c4 leaves; a training file for each list."""
    paths = [folder / TRAIN_FOLDER / f"part-{index:05d}.npy" for index in range(len(train_token_ids))]
    for path, token_ids in zip(paths, train_token_ids, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(np.array(token_ids, dtype="<u2").tobytes())
    tally = {"train_tokens": sum(map(len, train_token_ids))}
    made_by = {"settings": {}, "inputs": {}}
    write_data_folder(
        folder, documents, describe_files(folder, paths), tokenizer, made_by, tally, "tokenize_c4"
    )
    return folder


def write_texts(folder: Path, texts: Sequence[str], tokenizer: DocumentTokenizer, first_id: int = 0) -> Path:
    """The same of texts, tokenized; no training file."""
    encoded = enumerate(tokenizer.encode(texts), start=first_id)
    documents = [EvaluationDocument(f"{number:016x}", token_ids) for number, token_ids in encoded]
    return write_folder(folder, documents, tokenizer)


def write_data(
    folder: Path, train_token_ids: Sequence[Sequence[int]] = (), bos_token_ids: Sequence[int] = ()
) -> Path:
    """`DOCUMENTS`, with a word for each token."""
    documents = [EvaluationDocument(document_id, tokens) for document_id, tokens in DOCUMENTS.items()]
    return write_folder(
        folder, documents, DocumentTokenizer(word_tokenizer(bos_token_ids), eos_token_id=0), train_token_ids
    )


def write_checkpoint(run_folder: Path, model: OLMo) -> Path:
    """The run folder that pretrain leaves, with `model` as its only checkpoint."""
    folder = run_folder / "step20-unsharded"
    folder.mkdir(parents=True, exist_ok=True)
    TrainConfig.new(model=model.config).save(folder / "config.yaml")
    torch.save(model.state_dict(), folder / "model.pt")
    return run_folder


def write_measurable(folder: Path, model: OLMo) -> Path:
    """`DOCUMENTS` in `folder`/data, a model in `folder`/run."""
    write_checkpoint(folder / "run", model)
    return write_data(folder / "data").parent


def run(stage: ModuleType, *words: object) -> None:
    """Run a stage in this process on the words of a command line."""
    stage.STAGE([str(word) for word in words])


def stage_name(stage: ModuleType) -> str:
    return stage.__name__.rpartition(".")[2]


def command_line(stage: ModuleType, folder: Path, *flags: str | Path) -> list[str]:
    """The flags of a stage run on `folder`/data and `folder`/run; those in `flags` win."""
    here = {"--data": "data", "--checkpoints": "run", "--results": "results"}
    paths = [word for flag, name in here.items() for word in (flag, str(folder / name))]
    own = LENGTHS if "--context-lengths" in flags else FLAGS[stage_name(stage)]
    return [*paths, "--device", "cpu", *own, *map(str, flags)]


def measure(stage: ModuleType, folder: Path, *flags: str | Path) -> Path:
    """Run a stage in this process; the results folder."""
    arguments = stage.STAGE.parse(command_line(stage, folder, *flags))
    stage.STAGE.run(arguments)
    return arguments.results


def json_lines(seed: int, number: int, length: int = 160) -> str:
    """Documents of so many made-up words, 160 of which are more than 256 tokens, in C4's schema."""
    generator = random.Random(seed)
    words = ["".join(generator.choices("abcdeghilmnorstu", k=generator.randint(2, 7))) for _ in range(80)]
    texts = (" ".join(generator.choices(words, k=length)) for _ in range(number))
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def flip(path: Path) -> None:
    """Another bit in the middle, so that the size stays."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, hidden ones too but for locks, by its path there."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(LOCK_FILE))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
