"""A second implementation must agree: the same weights in Hugging Face's OLMo give the same token losses."""

from collections.abc import Callable

import numpy as np
import torch
from losses_under_contexts import long_context_losses
from olmo.model import OLMo

from pipeline.models.export import as_hugging_face
from pipeline.models.olmo import OLMoCausalLM


def test_hugging_face_agrees_on_every_token_loss(make_olmo: Callable[..., OLMo]) -> None:
    model = make_olmo(max_sequence_length=64)
    twin = as_hugging_face(model)
    tokens = np.random.default_rng(3).integers(0, 48, 64)
    ours = long_context_losses(OLMoCausalLM(model), tokens, np.arange(1, 64))
    with torch.inference_mode():
        logits = twin(torch.tensor(tokens)[None]).logits[0, :-1]
    theirs = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]), reduction="none")
    assert np.abs(ours - theirs.numpy()).max() < 1e-4
    assert ours.std() > 0.1  # the agreement is about losses that differ from token to token
