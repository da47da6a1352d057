"""Models on the hub: what is fetched, and one quick sentence where it cannot be."""

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import RepositoryNotFoundError

from pipeline.cli import InputError
from pipeline.models import load as hub
from pipeline.models.load import find_model, snapshot, weight_files

FILES = [
    "README.md", "config.json", "tokenizer.json", "modeling_x.py", "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "consolidated.safetensors", "original/params.json", "onnx/model.onnx", "model.gguf",
]  # fmt: skip


def answer(monkeypatch: pytest.MonkeyPatch, reply: Callable[[], Any]) -> None:
    monkeypatch.setattr(hub.HfApi, "model_info", lambda *_, **__: reply())


def unreachable() -> None:
    raise httpx.ConnectError("Name or service not known")


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """A hub that has every model; what is asked of it."""
    asked: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        return str(tmp_path)

    answer(monkeypatch, lambda: SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in FILES]))
    monkeypatch.setattr(hub, "snapshot_download", download)
    return asked


def test_only_what_a_model_is_loaded_from_is_fetched(downloads: list[dict[str, Any]]) -> None:
    for with_code in (False, True):
        snapshot("owner/x", "v1", with_code)
    assert [(asked["name"], asked["revision"]) for asked in downloads] == [("owner/x", "v1")] * 2
    wanted = [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "config.json", "tokenizer.json", "model.safetensors.index.json",
    ]  # fmt: skip
    found = [sorted(asked["allow_patterns"]) for asked in downloads]
    assert found == [sorted(wanted), sorted([*wanted, "modeling_x.py"])]
    # Older weights count where there are no safetensors.
    assert weight_files(["pytorch_model.bin", "training_args.bin"]) == ["pytorch_model.bin"]
    assert weight_files(["pytorch_model.bin", "model.safetensors"]) == ["model.safetensors"]


def test_results_are_filed_by_the_last_part_and_the_revision(
    downloads: list[dict[str, Any]], tmp_path: Path
) -> None:
    for word, revision, name in (("gpt2", None, "gpt2"), ("owner/x", "refs/pr/1", "x-refs-pr-1")):
        found = find_model(word, revision)
        assert (found.name, found.folder, found.is_olmo) == (name, tmp_path, False)


def test_a_hub_that_never_answers_is_one_quick_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setattr(hub, "HUB_PATIENCE_SECONDS", 0.2)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(hub, "HfApi", partial(HfApi, f"http://127.0.0.1:{mute.getsockname()[1]}"))
        with pytest.raises(InputError, match=r"revision v1 is not in the cache .*timed out"):
            snapshot("owner/x", "v1", with_code=False)


def test_offline_the_cache_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer(monkeypatch, unreachable)
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "models--owner--x"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").touch()
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    monkeypatch.setattr(hub, "snapshot_download", partial(hub.snapshot_download, cache_dir=tmp_path))
    assert snapshot("owner/x", None, with_code=False) == folder / "snapshots" / commit


def test_no_such_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found() -> None:
        response = httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co"))
        raise RepositoryNotFoundError("404 Client Error", response=response)

    answer(monkeypatch, not_found)
    with pytest.raises(InputError, match="no folder runs/lnog here, and no model runs/lnog on the Hugging"):
        find_model("runs/lnog")
