"""OLMo: chosen position IDs and nothing else changed; finding and loading checkpoints, and damaged ones."""

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from measured_documents import flip
from naive_predictions import scaled, scaled_by_hand
from olmo.config import TrainConfig
from olmo.model import OLMo

from pipeline.cli import InputError
from pipeline.models.export import as_hugging_face
from pipeline.models.load import FACTS, find_checkpoint, load_olmo, model_name, training_facts, write_mark
from pipeline.models.olmo import OLMoCausalLM, scale_attention, use_position_ids

MakeOLMo = Callable[..., OLMo]
CPU = torch.device("cpu")
ROWS = torch.arange(40)[None]


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 48, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"rope_full_precision": False}, {"n_kv_heads": 2}, {"block_group_size": 2},
        {"weight_tying": False, "scale_logits": True, "embedding_layer_norm": True},
        {"attention_layer_norm": True, "norm_after": True, "layer_norm_type": "rms"},
    ],
)  # fmt: skip
def test_contiguous_ids_give_the_stock_logits_bit_for_bit(
    make_olmo: MakeOLMo, fields: dict[str, Any]
) -> None:
    token_ids = _tokens(2, 40)
    with torch.inference_mode():
        stock = make_olmo(**fields)(token_ids).logits
    lm = OLMoCausalLM(make_olmo(**fields))
    assert torch.equal(lm.logits(lm.hidden_states(token_ids, ROWS, None, None)), stock)


def test_training_forward_reads_the_ids_too(make_olmo: MakeOLMo) -> None:
    token_ids, model = _tokens(2, 40), make_olmo()
    stock = model(token_ids).logits
    rotary = use_position_ids(model)
    rotary.set_position_ids(ROWS)
    assert torch.equal(model(token_ids).logits, stock)
    rotary.set_position_ids(2 * ROWS)
    assert (model(token_ids).logits - stock).abs().max() > 1e-3


def test_ids_and_not_rows_are_the_positions(make_olmo: MakeOLMo) -> None:
    token_ids, lm = _tokens(2, 40), OLMoCausalLM(make_olmo(init_std=0.1))
    near = lm.logits(lm.hidden_states(token_ids, ROWS, None, None))
    # Far beyond max_sequence_length: the table of sines grows.
    far = lm.logits(lm.hidden_states(token_ids, ROWS + 100, None, None))
    assert (near - far).abs().max() < 1e-5
    both = torch.cat([ROWS, 3 * ROWS])
    together = lm.hidden_states(token_ids, both, None, None)
    for row in (0, 1):
        alone = lm.hidden_states(token_ids[row : row + 1], both[row : row + 1], None, None)
        assert (together[row] - alone[0]).abs().max() < 1e-5, "IDs may differ within a batch"


@pytest.fixture
def checkpoint(tmp_path: Path, make_olmo: MakeOLMo) -> Path:
    """As another program leaves it: without a mark."""
    folder = tmp_path / "run" / "step20-unsharded"
    folder.mkdir(parents=True)
    _save(make_olmo(seed=4), folder)
    return folder


def _save(model: OLMo, folder: Path) -> None:
    TrainConfig.new(model=model.config).save(folder / "config.yaml")
    torch.save(model.state_dict(), folder / "model.pt")


def test_a_run_folder_means_its_last_step(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    later = checkpoint.with_name("step100-unsharded")
    later.mkdir()  # nothing in it: not a checkpoint
    (checkpoint.parent / "step3-unsharded").mkdir()
    (checkpoint.parent / "step3-unsharded" / "model.pt").touch()
    assert find_checkpoint(checkpoint.parent) == find_checkpoint(checkpoint) == checkpoint
    assert caplog.messages == [f"{later} holds no model and is passed over"]
    assert (model_name(checkpoint.parent), model_name(checkpoint)) == ("run", "run-step20")
    with pytest.raises(InputError, match="there is no file or folder"):
        find_checkpoint(checkpoint.parent / "nowhere")


def _refusal(checkpoint: Path) -> str:
    with pytest.raises(InputError) as error:
        load_olmo(checkpoint, CPU)
    return str(error.value)


class Hostile:
    """Would run a command where it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def _hold(content: object) -> Callable[[Path, MakeOLMo], object]:
    return lambda folder, make_olmo: torch.save(content, folder / "model.pt")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder, _: os.truncate(folder / "model.pt", 1000), "is damaged, or was not written by"),
        (_hold({"a": 3}), "is not the weights of its config.yaml: it lacks"),
        (_hold(Hostile()), "is damaged, or was not written by"),
        (lambda folder, make_olmo: _save(make_olmo(rope=False), folder), "model.rope true"),
        (lambda folder, _: (folder / "config.yaml").write_text("]["), "is not an OLMo configuration"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_said(
    spoil: Callable[[Path, MakeOLMo], object], sentence: str, checkpoint: Path, make_olmo: MakeOLMo
) -> None:
    spoil(checkpoint, make_olmo)
    assert sentence in _refusal(checkpoint)


def test_a_mark_tells_of_every_change(checkpoint: Path) -> None:
    write_mark(checkpoint)
    load_olmo(checkpoint, CPU)
    later = Path(shutil.copytree(checkpoint, checkpoint.with_name("step100-unsharded")))
    flip(checkpoint / "model.pt")
    assert "model.pt has not the SHA-256 of its manifest" in _refusal(checkpoint)
    os.truncate(checkpoint / "model.pt", 1000)
    assert "has 1000 bytes, not " in _refusal(checkpoint)
    (checkpoint / "complete.json").write_text("{}")
    assert "complete.json is not the mark of a complete checkpoint" in _refusal(checkpoint)
    # A later step that lost a file is not passed over: an earlier one would be another result.
    (later / "model.pt").unlink()
    assert find_checkpoint(checkpoint.parent) == later
    assert f"the checkpoint {later} is damaged: {later}/model.pt is missing" in _refusal(later)


OURS = "seed: 3\ntrain_context_length: 64\nposition_scheme: pose\nmodel: {max_sequence_length: 256}\n"
STOCK = "seed: 6198\nmodel: {max_sequence_length: 2048}\n"


def test_facts_of_training_are_read_off_folder_and_configuration(tmp_path: Path) -> None:
    for name, config, expected in (
        ("step1100-unsharded", OURS, (1100, 64, "pose", 3)),
        ("step738020", STOCK, (738020, 2048, None, 6198)),
        ("latest", OURS, (None, 64, "pose", 3)),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(config)
        assert training_facts(tmp_path / name, is_olmo=True) == dict(zip(FACTS, expected, strict=True))
    assert set(training_facts(tmp_path, is_olmo=False).values()) == {None}


@pytest.mark.parametrize("scaling", ["log_length", "learnt"])
def test_scores_are_scaled_by_the_logarithm_of_the_keys_seen(make_olmo: MakeOLMo, scaling: str) -> None:
    token_ids, fields = _tokens(2, 40), {"seed": 2, "n_kv_heads": 2}
    ours = [make_olmo(**fields) for _ in range(2)]
    for model in ours:
        scale_attention(model, scaling, train_context_length=16)
    by_hand = scaled_by_hand(make_olmo(**fields), [1 / math.log(16)] * 4)
    with torch.inference_mode():
        expected = by_hand(token_ids).logits
        assert (ours[0](token_ids).logits - expected).abs().max() < 1e-5, "as training runs it"
    lm = OLMoCausalLM(ours[1])
    assert (lm.logits(lm.hidden_states(token_ids, ROWS, None, None)) - expected).abs().max() < 1e-5
    plain = make_olmo(**fields)
    scale_attention(plain, "none", train_context_length=16)
    assert torch.equal(plain(token_ids).logits, make_olmo(**fields)(token_ids).logits)
    assert (plain(token_ids).logits - expected).abs().max() > 1e-2


def test_what_is_left_out_is_not_counted(make_olmo: MakeOLMo) -> None:
    """As if the text had never had the token; in a prefix, a mask or numbers, with query rows or all."""
    lm = OLMoCausalLM(scaled(make_olmo(seed=2)))
    token_ids, kept = _tokens(1, 40), torch.tensor([row for row in range(40) if row != 11])
    without = lm.hidden_states(token_ids[:, kept], ROWS[:, kept], None, None)[0, -5:]
    last, seen = ROWS[:, -5:], torch.ones(1, 40, 40, dtype=torch.bool).tril()
    seen[..., 11] = False
    _, prefix = lm.read(token_ids[:, :11], ROWS[:, :11], None, None)
    with torch.inference_mode():
        added = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        found = [
            lm.hidden_states(token_ids, ROWS, seen, last)[0],
            lm._run(token_ids, ROWS, added, last)[0][0],
            lm.hidden_states(token_ids[:, 12:], ROWS[:, 12:], None, None, prefix)[0, -5:],
            lm.hidden_states(token_ids[:, 12:], ROWS[:, 12:], seen[:, 12:, 12:], last - 12, prefix)[0],
        ]
    for hidden in found:
        assert (hidden - without).abs().max() < 1e-4


@pytest.mark.parametrize("scaling", ["log_length", "learnt", None])
def test_a_checkpoint_is_measured_with_the_scaling_that_it_was_trained_with(
    tmp_path: Path, make_olmo: MakeOLMo, scaling: str | None
) -> None:
    model = make_olmo(seed=4)
    scale_attention(model, scaling or "none", train_context_length=16)
    _save(model, tmp_path)
    if scaling is not None:  # without: as a run before there was a choice
        ours = f"\nattention_scaling: {scaling}\ntrain_context_length: 16\n"
        (tmp_path / "config.yaml").write_text((tmp_path / "config.yaml").read_text() + ours)
    loaded = load_olmo(tmp_path, CPU)
    found = loaded.logits(loaded.hidden_states(_tokens(1, 40), ROWS, None, None))
    assert (found - model(_tokens(1, 40)).logits).abs().max() < 1e-5
    if scaling is not None:
        with pytest.raises(InputError, match="attention of this model is scaled"):
            as_hugging_face(model)
        assert ("scale_H" in str(model.state_dict().keys())) == (scaling == "learnt")
