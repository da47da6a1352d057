"""RoPE scaled at loading: as stock models whose configuration says so; what cannot be scaled is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hugging_face_families import VOCABULARY_SIZE, make_model, windowed
from measured_documents import measure, word_tokenizer, write_checkpoint, write_data
from olmo.model import OLMo
from sparsity_length.programs import loss_differences
from transformers import AutoModelForCausalLM, PreTrainedModel

from sparsity_length import explain, influential_tokens, losses
from sparsity_length.cli import InputError
from sparsity_length.models import attention
from sparsity_length.models.huggingface import load_hugging_face
from sparsity_length.models.load import find_model, load_causal_lm
from sparsity_length.models.rope import RopeScaling, Stair
from sparsity_length.models.settings import Loading
from sparsity_length.results.read import Results

CPU = torch.device("cpu")
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
TOKENS = torch.randint(0, VOCABULARY_SIZE, (1, 20), generator=torch.Generator().manual_seed(2))
CONTIGUOUS = torch.arange(20)[None]
GAPPED = torch.cat((CONTIGUOUS[:, :12], CONTIGUOUS[:, 12:] + 100), dim=1)


def stock_logits(stock: PreTrainedModel, position_ids: torch.Tensor) -> torch.Tensor:
    """With a mask of four dimensions, so that the library does not take a gap for a border of two texts."""
    hidden = torch.ones(1, 1, 20, 20).triu(1) * torch.finfo(torch.float32).min
    return stock(
        input_ids=TOKENS,
        position_ids=position_ids,
        attention_mask=windowed(stock, hidden),
        use_cache=False,
    ).logits


@pytest.mark.parametrize(
    ("family", "parameters"),
    [
        ("llama", {"rope_theta": 1e4, **YARN}),
        ("gpt_neox", {"rope_theta": 1e4, "partial_rotary_factor": 0.25, **YARN}),
        (
            "gemma3",
            {
                "full_attention": {"rope_theta": 1e6, **YARN},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            },
        ),
    ],
)
@pytest.mark.parametrize("ids", [CONTIGUOUS, GAPPED], ids=["contiguous", "gapped"])
@torch.inference_mode()
def test_yarn_is_that_of_the_stock_model(
    ids: torch.Tensor, family: str, parameters: dict[str, Any], tmp_path: Path
) -> None:
    # The window of Gemma's other layer is wide enough to see the gap: IDs are what differs.
    fields = {"sliding_window": 200} if family == "gemma3" else {}
    make_model(family, **fields).save_pretrained(tmp_path)
    stock = AutoModelForCausalLM.from_pretrained(
        tmp_path, rope_parameters=parameters, attn_implementation="eager"
    )
    scaled = load_hugging_face(tmp_path, device=CPU, num_positions=200, rope=RopeScaling.parse("yarn:2"))
    plain = load_hugging_face(tmp_path, device=CPU, num_positions=200)
    expected = stock_logits(stock, ids)
    of_scaled, of_plain = (lm.logits(lm.hidden_states(TOKENS, ids, None, None)) for lm in (scaled, plain))
    assert (of_scaled - expected).abs().max() < 2e-5 < 1e-2 < (of_plain - expected).abs().max()


def test_stair_positions_by_hand() -> None:
    stair = RopeScaling.parse("stair:4:3")
    assert stair == Stair(4, 3) and str(stair) == "stair:4:3"
    query, keys = stair.far_ids(torch.tensor([11]), torch.arange(8))
    assert (query - keys).tolist() == [6, 6, 6, 5, 5, 5, 4, 4]


@pytest.mark.parametrize("ids", [CONTIGUOUS, GAPPED], ids=["contiguous", "gapped"])
@pytest.mark.parametrize("scores_per_block", [300, 1 << 26])
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "cohere", "gemma3"])
@torch.inference_mode()
def test_stair_positions_are_those_of_a_stock_model_that_is_given_them(
    family: str, scores_per_block: int, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One layer, where only the last row attends in a way that counts: its keys may stand anywhere."""
    monkeypatch.setattr(attention, "_SCORES_PER_BLOCK", scores_per_block)
    fields = {"layer_types": ["full_attention"]} if family == "gemma3" else {}
    make_model(family, num_hidden_layers=1, **fields).save_pretrained(tmp_path)
    lm = load_hugging_face(tmp_path, device=CPU, num_positions=200, rope=RopeScaling.parse("stair:5:4"))
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    last = ids[:, -1:]
    woven = torch.where(last - ids < 5, last - ids, 5 + (last - 5) // 4 - ids // 4)
    expected, plain = (stock_logits(stock, places)[:, -1] for places in (last - woven, ids))
    _, prefix = lm.read(TOKENS[:, :8], ids[:, :8], None, None)
    for start, past in ((0, None), (8, prefix)):
        found = lm.logits(lm.hidden_states(TOKENS[:, start:], ids[:, start:], None, None, past)[:, -1])
        assert (found - expected).abs().max() < 2e-5
    assert (plain - expected).abs().max() > 1e-2


def test_layers_without_rope_have_no_stairs(tmp_path: Path) -> None:
    make_model("smollm3").save_pretrained(tmp_path)
    lm = load_hugging_face(tmp_path, device=CPU, num_positions=16, rope=Stair(5, 4))
    assert lm._rotates == [True, False]


def test_large_biases_of_keys_hide_no_rope(tmp_path: Path) -> None:
    """In bfloat16, on the dimensions that turn slowly."""
    model = make_model("qwen2", initializer_range=0.05)
    for layer in model.model.layers:
        layer.self_attn.k_proj.bias.data.view(2, 8)[:, [3, 7]] += 100
    model.save_pretrained(tmp_path)
    lm = load_hugging_face(tmp_path, device=CPU, dtype=torch.bfloat16, num_positions=16, rope=Stair(5, 4))
    assert (lm._rotates, lm.dtype) == ([True, True], torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("family", "word", "sentence"),
    [
        ("gpt2", "stair:4:3", "cannot have stair positions"),
        ("mpt", "stair:4:3", "cannot have stair positions"),
        ("olmo3", "stair:4:3", "its rotations are not additive"),  # YaRN's also stretch
        ("llama", "stair:16:3", "of 16 position IDs none are 16 or more apart.*choose a smaller W"),
        ("gpt2", "yarn:2", "has no RoPE whose parameters can be set"),
        ("llama3_rope_tied", "yarn:2", r"comes with scaled RoPE \(llama3\)"),
        ("olmo3", "yarn:2", r"comes with scaled RoPE \(yarn\)"),
    ],
)
def test_models_that_cannot_be_scaled_are_refused(
    family: str, word: str, sentence: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    make_model(family).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=sentence):
        load_hugging_face(tmp_path, device=CPU, dtype=dtype, num_positions=16, rope=RopeScaling.parse(word))


NO_SCALING = "must be KIND:FACTOR with a factor above 1, such as yarn:2"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *((text, NO_SCALING) for text in ("stair:0:3", "stair:4", "stair:4:0", "yarn", "yarn:", "yarn:1")),
        *((text, NO_SCALING) for text in ("yarn:-2", "yarn:nan", "yarn:2x", "2", "")),
        ("yarm:2", "unknown kind of --rope 'yarm'; did you mean 'yarn'"),
    ],
)
def test_nonsense_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        RopeScaling.parse(text)


def test_olmo_and_models_in_memory_are_refused(tmp_path: Path, make_olmo: Callable[..., OLMo]) -> None:
    write_checkpoint(tmp_path / "run", make_olmo(seed=1))
    with pytest.raises(InputError, match="is an OLMo checkpoint: export it first"):
        load_causal_lm(find_model(str(tmp_path / "run")), Loading(device="cpu", rope=Stair(5, 4)), 16)
    with pytest.raises(InputError, match="rope changes a model that is loaded here"):
        explain("a text", make_model("llama"), rope="yarn:2")


def test_the_library_scales_a_model_that_it_loads(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, rope_parameters={"rope_theta": 1e4, **YARN})
    words = {"tokenizer": word_tokenizer(), "short_context_length": 4}
    text = TOKENS[0].tolist()
    expected, plain = (losses(text, model, **words)["long_context_loss"] for model in (stock, tmp_path))
    found = losses(text, tmp_path, **words, rope="yarn:2")["long_context_loss"]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert (plain - found).abs().max() > 1e-3
    few = influential_tokens(text, tmp_path, **words, k=1, rule="recency", ablation="mask", rope="yarn:2")
    np.testing.assert_allclose(few["long_context_loss"], expected[few["position"]], atol=2e-5)


def test_results_record_it_and_are_not_mixed(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    make_model("llama").save_pretrained(tmp_path / "llama")
    flags = ["--checkpoints", tmp_path / "llama"]
    results = Results(measure(loss_differences, tmp_path, *flags, "--rope", "yarn:2.000001"))
    assert results.made_by("loss_differences")["llama"]["settings"]["rope"] == "yarn:2.000001"
    with pytest.raises(InputError, match="settings.rope was 'yarn:2.000001', now None"):
        measure(loss_differences, tmp_path, *flags)
