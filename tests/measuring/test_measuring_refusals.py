"""What the stages refuse of evaluators, swaps and rules: a sentence, and nothing written."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hugging_face_families import make_model
from measured_documents import DOCUMENTS, contents, measure, write_checkpoint, write_data
from olmo.model import OLMo
from sparsity_length.programs import evaluate_tokens, influential_tokens, loss_differences
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from sparsity_length.cli import InputError


@pytest.fixture
def folder(tmp_path: Path, make_olmo: Callable[..., OLMo]) -> Path:
    write_data(tmp_path / "data")
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    make_model("llama", vocab_size=64).save_pretrained(tmp_path / "padded")
    return tmp_path


def refused(stage: ModuleType, folder: Path, *flags: str) -> str:
    """The sentence that a stage refuses with, nothing being written."""
    with pytest.raises(InputError) as error:
        measure(stage, folder, *flags)
    assert contents(folder / "results") == {}
    return str(error.value)


def test_a_model_beside_it_of_another_tokenizer(folder: Path, make_olmo: Callable[..., OLMo]) -> None:
    step = write_checkpoint(folder / "other-run", make_olmo(seed=1)) / "step20-unsharded"
    words = {f"w{(index + 1) % 48}": index for index in range(48)}
    Tokenizer(WordLevel(words, unk_token="w1")).save(str(step / "tokenizer.json"))
    sentence = refused(loss_differences, folder, "--checkpoints", str(folder / "other-run"))
    assert f"is another tokenizer than that of other-run, the tokenizer {step}/tokenizer.json" in sentence


def test_another_model_of_one_name_in_one_results_folder(
    folder: Path, make_olmo: Callable[..., OLMo]
) -> None:
    for seed, name in enumerate(("a/evaluator", "b/evaluator", "elsewhere/run")):
        write_checkpoint(folder / name, make_olmo(seed=seed))
    choices = measure(influential_tokens, folder, "--max-documents", "2")
    tried = ["--choices", str(choices), "--checkpoints"]
    measure(evaluate_tokens, folder, *tried, f"{folder}/a/evaluator")
    for stage, words, of_input, now in (
        (evaluate_tokens, tried, "evaluator", "b/evaluator"),
        (influential_tokens, ["--max-documents", "2", "--checkpoints"], "checkpoint", "elsewhere/run"),
    ):
        with pytest.raises(InputError, match=rf"inputs\.{of_input} was '\w+', now '\w+'"):
            measure(stage, folder, *words, f"{folder}/{now}")


def test_what_is_no_number_is_told_with_the_model_that_gave_it(
    folder: Path, make_olmo: Callable[..., OLMo]
) -> None:
    model = make_olmo(seed=2, weight_tying=False)
    tokens = next(iter(DOCUMENTS.values()))
    # A token that stands in the second chunk once, before its targets 21, 22 and 23, and nowhere else.
    position = next(place for place in range(20, 12, -1) if np.sum(tokens[:24] == tokens[place]) == 1)
    model.transformer.wte.weight.data[int(tokens[position])] = float("nan")
    write_checkpoint(folder / "broken", model)
    sentence = refused(
        loss_differences, folder, "--max-documents", "2", "--checkpoints", str(folder / "broken")
    )
    assert sentence.startswith("model 'broken' gives the token at position 21 of document 00000000000000aa")
    assert "a loss of nan" in sentence
