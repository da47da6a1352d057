"""What is told of a checkpoint's training, from configurations written by hand."""

from pathlib import Path

import pytest

from pipeline.models.load import FACTS, training_facts

OURS = "seed: 3\ntrain_context_length: 64\nposition_scheme: pose\nmodel: {max_sequence_length: 256}\n"
STOCK = "seed: 6198\nmodel: {max_sequence_length: 2048}\n"


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("step1100-unsharded", OURS, (1100, 64, "pose", 3)),
        ("step0-unsharded", STOCK, (0, 2048, None, 6198)),
        ("step738020", STOCK, (738020, 2048, None, 6198)),
        ("latest", OURS, (None, 64, "pose", 3)),
    ],
)
def test_facts_are_read_off_folder_and_configuration(
    tmp_path: Path, name: str, config: str, expected: tuple[object, ...]
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.yaml").write_text(config)
    assert training_facts(folder, is_olmo=True) == dict(zip(FACTS, expected, strict=True))


def test_a_hugging_face_model_tells_nothing(tmp_path: Path) -> None:
    assert set(training_facts(tmp_path, is_olmo=False).values()) == {None}
