"""A model from the hub's cache, without a network: what is needed is enough."""

from pathlib import Path

import huggingface_hub
import pytest
from hugging_face_families import make_model
from huggingface_hub import constants

from sparsity_length.cli import InputError
from sparsity_length.models.load import find_model, name_of
from sparsity_length.text.tokenizer import parse_tokenizer_name, train_bpe

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cached files of me/tiny, two shards among them; the hub has others, which were not fetched."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cache = tmp_path / "models--me--tiny"
    folder = cache / "snapshots" / COMMIT
    make_model("llama").save_pretrained(folder, max_shard_size="20KB")
    (folder / "tokenizer.json").write_text(train_bpe(["a b"], 257).to_json())
    for revision in ("main", "refs/pr/1", "feature/x"):
        (cache / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
        (cache / "refs" / revision).write_text(COMMIT)
    names = [*(path.name for path in folder.iterdir()), "all_results.json", "generation_config.json"]
    tree = pytest.importorskip("huggingface_hub._tree_cache")
    files = {name: tree.TreeCacheEntry(1, "0" * 40) for name in names}
    tree.write_tree_cache(str(cache), COMMIT, files)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


@pytest.mark.parametrize("at", ["", "@main", "@refs/pr/1", "@feature/x", f"@{COMMIT}"])
def test_what_nobody_needs_may_be_missing(at: str, snapshot: Path) -> None:
    with pytest.raises(huggingface_hub.errors.IncompleteSnapshotError):
        huggingface_hub.snapshot_download("me/tiny", local_files_only=True)
    assert find_model(f"me/tiny{at}").folder == snapshot
    assert find_model(f"me/tiny{at}").name == f"tiny{at}".replace("@", "-").replace("/", "-")
    assert parse_tokenizer_name(f"me/tiny{at}") == snapshot


@pytest.mark.parametrize(
    "missing", ["config.json", "tokenizer.json", "model-00002-of-*", "model.safetensors.index.json"]
)
def test_what_is_needed_may_not(missing: str, snapshot: Path) -> None:
    next(snapshot.glob(missing)).unlink()
    with pytest.raises(
        InputError, match="me/tiny at revision main is not in the cache and cannot be fetched"
    ):
        find_model("me/tiny")


def test_names_of_models(tmp_path: Path) -> None:
    assert name_of("gpt2") == "gpt2" and name_of("me/tiny@v1.0") == "tiny-v1.0"
    assert name_of(str(tmp_path / "runs" / "long-seed0")) == "long-seed0"
