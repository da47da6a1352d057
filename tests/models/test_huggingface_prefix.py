"""A prefix that no sequence has a copy of: the numbers are the same as with copies."""

from pathlib import Path

import pytest
import torch
from hugging_face_families import FAMILIES, make_model

from pipeline.models import huggingface as huggingface_prefix
from pipeline.models.huggingface import HuggingFaceCausalLM, load_hugging_face
from pipeline.models.interface import causal_visibility

CPU = torch.device("cpu")
WITHOUT = {"gemma2"}  # its scores are capped, which no fused kernel does


def _hidden_states(lm: HuggingFaceCausalLM, visible_BSK: torch.Tensor | None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    before_1P, rows_BS = (torch.randint(0, 48, size, generator=generator) for size in ((1, 14), (3, 9)))
    position_ids = torch.arange(0, 46, 2)[None]
    _, prefix = lm.read(before_1P, position_ids[:, :14], None, None)
    return lm.hidden_states(rows_BS, position_ids[:, 14:], visible_BSK, torch.tensor([[2, 8]]), prefix)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_copies_the_numbers_are_the_same(family: str) -> None:
    visible_1SS = causal_visibility(9, CPU)
    visible_1SS[:, 6:, 3] = False
    beyond_1SK = torch.nn.functional.pad(visible_1SS, (14, 0), value=True)
    beyond_1SK[..., 5] = False  # not all of the prefix is seen: copies are needed
    models = [HuggingFaceCausalLM(make_model(family)) for _ in range(2)]
    models[1].share_prefix(True)
    assert [lm.shares_prefix for lm in models] == [False, family not in WITHOUT]
    for visible in (None, visible_1SS, beyond_1SK):
        with_copies, without = (_hidden_states(lm, visible) for lm in models)
        torch.testing.assert_close(without, with_copies, rtol=0, atol=2e-5)
    assert models[0].sequence_bytes(9, 1000) > models[0].sequence_bytes(9, 14)
    if models[1].shares_prefix:
        assert models[1].sequence_bytes(9, 1000) == models[1].sequence_bytes(9, 14)


def _load(folder: Path) -> HuggingFaceCausalLM:
    return load_hugging_face(folder, device=CPU, num_positions=46)


def test_a_model_is_loaded_without_copies_where_it_obeys_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model("llama").save_pretrained(tmp_path)
    lm = _load(tmp_path)
    assert lm.shares_prefix
    expected = _hidden_states(lm, None)
    # A family whose code would not see the prefix so: then it is copied, as everywhere before.
    monkeypatch.setattr(huggingface_prefix, "attend", lambda query, *_: torch.zeros_like(query))
    lm = _load(tmp_path)
    assert not lm.shares_prefix
    torch.testing.assert_close(_hidden_states(lm, None), expected, rtol=0, atol=2e-5)


def test_attention_beyond_what_ours_computes_is_not_left_out_in_silence() -> None:
    lm = HuggingFaceCausalLM(make_model("llama"))
    lm.share_prefix(True)
    attention = lm._model.model.layers[1].self_attn
    stock, told = type(attention).forward, {}
    attention.forward = lambda *given, **named: stock(attention, *given, **told, **named)
    _hidden_states(lm, None)
    rows, position_ids = torch.zeros(1, 3, dtype=torch.int64), torch.arange(3)[None]
    _, prefix = lm.read(rows, position_ids, None, None)
    told["softcap"] = 2.0
    with pytest.raises(NotImplementedError, match="attention with softcap"):
        lm.hidden_states(rows, position_ids + 3, None, None, prefix)
