"""The small study of signs runs to its end: models learn the signs, and the first contrast has a row."""

from pathlib import Path

import pytest

from analysis.synthetic import signs
from pipeline.results.read import read_artefact
from pipeline.study import main, parser

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_small_study_of_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    study = str(ROOT / "olmo_configs" / "studies" / "signs_demo.yaml")
    with pytest.raises(SystemExit) as ended:
        main(parser().parse_args([study, f"run={tmp_path}", "--jobs", "2"]))
    assert not ended.value.code
    accuracy = read_artefact(tmp_path / "results", "synthetic_accuracy")
    assert accuracy["model"].nunique() == 8 and accuracy["is_learnt"].all()
    of_size = accuracy.groupby(["positions", "size"])["excess_loss"].mean()
    # Trained at 64 tokens to 0.06 nats; what was never seen is worse, and coupled IDs mend a part of it.
    assert of_size["contiguous"][64] < 0.1 < of_size["contiguous"][512]
    assert of_size["coupled"][512] < of_size["contiguous"][512]
    attention = accuracy["sign_attention"].map(max)
    assert attention[(accuracy["task"] == "signs_1") & (accuracy["size"] == 64)].min() > 0.5
    (row,) = signs.contrasts(signs.growths(accuracy)).to_dict("records")
    assert (row["contrast"], row["num_seeds"]) == ("four signs less one", 2)
    assert (tmp_path / "figures" / "signs.png").exists()
