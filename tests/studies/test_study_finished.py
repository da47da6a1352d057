"""What makes a finished command unfinished: other words, content or code, missing results; what does not."""

import json
import os
from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.studies.commands import Command, Tokenizing, Training
from pipeline.studies.file import Text
from pipeline.studies.run import Contents, Finished, Inputs, code_of, refuse_changes, say_changed_code

RUN = Path("run")
TRAINING = Training("model", Path("config.yaml"), (), RUN / "model")
DATA = (RUN / "data" / "manifest.json",)
# As in a real study; a text is no key of a dictionary.
TEXT = Tokenizing(Text(source=["text"], tokenizer="bpe:300"))
TOKENIZE = Command("tokenize", "t.py", ("text",), (), ("text", "c4"), DATA, TEXT)
READ = ("config.yaml", "run/data")
TRAIN = Command("model", "pipeline/pretrain.py", ("m",), ("tokenize",), READ, (RUN / "model",), TRAINING)
MARKS = RUN / "results" / "_stages" / "stage" / "model=model"
MEASURE = Command("measure", "m.py", ("r",), ("tokenize", "model"), ("run/data", "run/model"), (MARKS,))
STUDY = [TOKENIZE, TRAIN, MEASURE]


def write(path: str | Path, content: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(content)


def tokenized(digest: str, commit: str = "a") -> str:
    return json.dumps({"files": {"train.npy": {"sha256": digest}}, "git_commit": commit})


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Finished:
    """A study of three commands that has finished, in the current folder."""
    monkeypatch.chdir(tmp_path)
    write("text", "Once upon a time")
    write("config.yaml", "lr: 1")
    write("run/data/manifest.json", tokenized("d1"))
    write("run/model/step10-unsharded/model.pt", "ten steps")
    write("run/model/step10-unsharded/config.yaml", "lr: 1")
    write(MARKS / "00000.done", "")
    write("run/results/losses/model=model/00000.parquet", "numbers")
    finished = Finished(RUN)
    for command in STUDY:
        finished.add(command, finished.reads(command))
    assert all(command in Finished(RUN) for command in STUDY)
    return Finished(RUN)


def refusal(asked: list[Command], finished: Finished, settings: list[str] | None = None) -> str:
    with pytest.raises(InputError) as error:
        refuse_changes(asked, STUDY, finished, lambda training: settings or [])
    return str(error.value)


def test_an_edited_configuration_is_refused_with_what_was_made_of_it(finished: Finished) -> None:
    write("config.yaml", "lr: 2")
    assert TOKENIZE in finished and TRAIN not in finished
    assert refusal(STUDY, finished, ["lr was 1, now 2"]) == (
        "since model finished, lr was 1, now 2. Nothing was overwritten: choose another run folder, as in"
        " run=FOLDER, or remove what was made before the change: rm -r run/model run/results"
    )


def test_a_comment_in_a_configuration_changes_nothing(finished: Finished) -> None:
    write("config.yaml", "lr: 1 # which is much")
    assert TRAIN not in finished
    refuse_changes(STUDY, STUDY, finished, lambda training: [])
    assert all(command in Finished(RUN) for command in STUDY)


def test_text_tokenized_anew_is_refused_for_all_that_read_it(finished: Finished) -> None:
    write("run/data/manifest.json", tokenized("d1", "b"))
    assert TRAIN in finished  # the same tokens, at another time
    write("run/data/manifest.json", tokenized("d2"))
    sentence = refusal(STUDY, finished)
    # Of the measuring nothing is said yet: it needs what needs to be trained again.
    assert sentence.startswith("since model finished, run/data has changed. ")
    assert sentence.endswith(" rm -r run/model run/results")


def test_a_replaced_checkpoint_is_refused_when_it_is_measured(finished: Finished) -> None:
    write("run/model/step10-unsharded/model.pt", "TEN STEPS")
    assert MEASURE not in finished
    sentence = "since measure finished, run/model has changed. "
    assert refusal([MEASURE], finished).startswith(sentence)
    write("run/model/step20-unsharded/model.pt", "ten steps")
    assert TRAIN in finished and refusal([MEASURE], finished).startswith(sentence)


def test_other_text_is_refused_and_text_that_was_put_away_is_not(finished: Finished) -> None:
    write("text", "Twice upon a time")
    assert refusal(STUDY, finished).startswith("since tokenize finished, text has changed.")
    Path("text").unlink()
    assert TOKENIZE in finished


def test_what_was_removed_or_is_asked_otherwise_runs_again(finished: Finished) -> None:
    (RUN / "results/losses/model=model/00000.parquet").unlink()
    assert MEASURE not in finished and TRAIN in finished
    refuse_changes(STUDY, STUDY, finished, lambda training: [])
    otherwise = Command("model", "pipeline/pretrain.py", ("n",), (), TRAIN.reads, TRAIN.writes, TRAINING)
    assert otherwise not in finished and not finished.changed_reads(otherwise)  # the stage itself will say
    (RUN / "model/step10-unsharded/model.pt").unlink()
    assert TRAIN not in finished


def test_a_damaged_mark_asks_the_stage_again(finished: Finished) -> None:
    for damage in ("", "[]", '{"words": 1}'):
        write("run/.finished/measure.json", damage)
        assert MEASURE not in finished
    write("run/.finished/contents.json", "[1")
    assert TRAIN in Finished(RUN)


def test_large_files_are_read_once(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to_read(*paths: Path) -> str:
        raise AssertionError(f"{paths} was read again")

    monkeypatch.setattr("pipeline.studies.run.sha256_of_files", refuse_to_read)
    assert all(command in Finished(RUN) for command in STUDY)
    stat = Path("text").stat()
    Path("text").write_text("Once upon a TIME")
    os.utime("text", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as copying tools do
    with pytest.raises(AssertionError, match="was read again"):
        assert TOKENIZE in Finished(RUN)


def test_a_glob_stands_for_its_files(tmp_path: Path) -> None:
    contents, words = Contents(tmp_path / "memory.json"), [str(tmp_path / "*.txt")]
    assert contents.of_words(words) == {}
    (tmp_path / "a.txt").write_text("a")
    one = contents.of_words(words)
    (tmp_path / "b.txt").write_text("b")
    assert one.keys() == set(words) and contents.of_words(words) != one


def test_the_code_of_a_program_is_all_that_it_imports() -> None:
    files = code_of("pipeline/loss_differences.py")
    assert {
        "pipeline/loss_differences.py",
        "pipeline/measuring/contexts.py",
        "pipeline/cli.py",
    } <= set(files)
    assert not {"pipeline/query.py", "pipeline/measuring/rules.py"} & set(files)
    assert "pipeline/training/trainer.py" in code_of("pipeline/pretrain.py")  # imported late
    assert code_of("stage.py") == {}


def test_changed_code_is_named_and_what_it_made_is_kept(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    say_changed_code(STUDY, finished)
    assert not caplog.records
    changed = code_of("pipeline/pretrain.py") | {"pipeline/training/trainer.py": "says something else"}
    monkeypatch.setattr(
        "pipeline.studies.run.code_of",
        lambda program: changed if program == "pipeline/pretrain.py" else code_of(program),
    )
    assert TRAIN in finished
    say_changed_code(STUDY, finished)
    assert caplog.messages == [
        "the code has changed since model finished (pipeline/training/trainer.py), and what they made is"
        " kept; to make it anew, run in another folder, as in run=FOLDER, or first: rm -r run/model"
    ]
    monkeypatch.setattr("pipeline.studies.run.code_of", lambda program: {"t.py": "another"})
    caplog.clear()
    say_changed_code(STUDY, finished)
    assert caplog.messages[0].startswith("the code has changed since tokenize, model, measure finished (")


def test_comments_and_docstrings_are_not_what_code_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.studies.run._ROOT", tmp_path)
    codes = []
    for number, text in enumerate(['"""One."""\nx = 1\n', "x = 1  # two\n", "x = 2\n"]):
        (tmp_path / f"{number}.py").write_text(text)
        codes.append(code_of(f"{number}.py")[f"{number}.py"])
    assert codes[0] == codes[1] != codes[2]


def test_what_is_edited_while_a_study_runs(finished: Finished, caplog: pytest.LogCaptureFixture) -> None:
    write("study.yaml", "run: run")
    inputs = Inputs(Path("study.yaml"), STUDY, finished)
    inputs.say_edited_study()
    assert not caplog.records
    write("run/data/manifest.json", tokenized("d3"))
    for command in STUDY:
        inputs.refuse_edited(command)
    write("config.yaml", "lr: 2")
    with pytest.raises(
        InputError, match=r"^config.yaml was edited while the study ran, and model would be made"
    ):
        inputs.refuse_edited(TRAIN)
    write("study.yaml", "run: elsewhere")
    inputs.say_edited_study()
    assert caplog.messages[0].startswith(
        "study.yaml was edited or moved while this ran: what it said at the start"
    )
