"""Every command of the recipes runs, in the order of the page, on a tiny model and a few documents.

Not run here: the notebook of the question's figure (tests/analysis/test_notebooks.py runs it) and Slurm's
scripts (tests/slurm runs those).
"""

import importlib
import json
import os
import random
import re
from pathlib import Path

import pytest
from hugging_face_families import make_model
from shown_commands import ROOT, Shown, commands_of

from pipeline.text.bpe import train_bpe

PAGE = ROOT / "pipeline" / "RECIPES.md"
RECIPES = re.findall(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
ELSEWHERE = {"The question's figure", "All of C4 on a cluster"}
SMALL = {
    "EleutherAI/pythia-160m": "pythia-tiny", "runs/demo/models/long-seed0": "pythia-tiny", "100": "3",
    "20": "2", "embedded": "english.jsonl", "LICENSE": "letter.txt",
}  # fmt: skip
"""Words of the page, and what stands for them here: a model, numbers of documents, a text."""


def _documents(seed: int, number: int) -> str:
    """Documents of 160 made-up words, more than 256 tokens, in C4's schema."""
    generator = random.Random(seed)
    words = ["".join(generator.choices("abcdeghilmnorstu", k=generator.randint(2, 7))) for _ in range(80)]
    texts = (" ".join(generator.choices(words, k=160)) for _ in range(number))
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader brings along: a model and its tokenizer, documents, a letter."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "my_documents").mkdir()
    (folder / "my_documents" / "a.jsonl").write_text(_documents(0, 4))
    (folder / "english.jsonl").write_text(_documents(1, 3))
    (folder / "letter.txt").write_text(json.loads(_documents(2, 1))["text"][:200])
    tokenizer = train_bpe([_documents(3, 4), "magic number of Oslo is 48213"], 320)
    (folder / "runs" / "mine").mkdir(parents=True)
    (folder / "runs" / "mine" / "tokenizer.json").write_text(tokenizer.to_json())
    model = make_model("gpt_neox", vocab_size=tokenizer.vocabulary_size, max_position_embeddings=320)
    model.save_pretrained(folder / "pythia-tiny")
    (folder / "pythia-tiny" / "tokenizer.json").write_text(tokenizer.to_json())
    return folder


def run(command: Shown) -> None:
    program = importlib.import_module(command.program.removesuffix(".py").replace("/", "."))
    program.main(program.parser().parse_args([SMALL.get(word, word) for word in command.arguments]))


def test_every_recipe_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setitem(os.environ, "NO_COLOR", "1")
    said = {}
    for recipe in (recipe for recipe in RECIPES if recipe not in ELSEWHERE):
        commands = commands_of(PAGE, recipe)
        assert commands, f"{recipe} shows no command"
        for command in commands:
            run(command)
        said[recipe] = capsys.readouterr().out
    assert "pythia-tiny" in said["Does my model use its far context?"]
    assert "long_perplexity" in said["LongPPL of my model"]
    header, *rows = Path("runs/mine/ranked.csv").read_text().splitlines()
    gains = [float(row.split(",")[2]) for row in rows]
    assert header == "document_id,targets,gain_nats"
    assert len(gains) == 3 and gains == sorted(gains, reverse=True)
    assert "pythia-tiny" in Path("runs/mine/explorer.html").read_text()
    assert Path("explained.html").is_file()
    assert "depth" in said["Needles in my model"]
    chosen = Path("runs/mine/rules/sparse_context_losses/model=pythia-tiny")
    assert list(chosen.glob("*.parquet"))


def test_what_is_not_run_here_is_said() -> None:
    assert set(RECIPES) > ELSEWHERE
    assert len(RECIPES) == 8
