"""How fast the influence of every distant token is measured: ours beside a plain loop, on one chunk.

Both have the same randomly initialized OLMo, tokens, machine, threads and tokens in a batch:
  ours   leave_out
  loop   one whole masked forward pass for each removed token, for all targets at once; our model code, logits
         at targets only

The more targets share a pass, the more a pass is worth, to both. They are timed in turn, --repeats times;
medians count. Numbers before speed: the influences must be equal to within --tolerance of their standard
deviation, or that is said and nothing else.

A few minutes on two cores:
  python tests/benchmarks/leave_one_out.py --long-context-lengths 256 --repeats 1 \\
      --out runs/benchmarks/quick.json

Shapes: L chunk, S rows, R removed tokens, T targets, F distant tokens.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from olmo.config import ModelConfig
from olmo.model import OLMo
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sparsity_length.cli import InputError, Stage, positive_int
from sparsity_length.measuring.contexts import Batching, full_pass, own_context
from sparsity_length.measuring.search import leave_out, single_tokens
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.models.devices import keep_freed_memory
from sparsity_length.models.interface import causal_visibility
from sparsity_length.models.olmo import OLMoCausalLM


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds of one call, to its last kernel."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


@dataclass(frozen=True)
class Problem:
    """What both measure."""

    lm: OLMoCausalLM
    lengths: ContextLengths
    chunk_L: np.ndarray
    tokens_per_batch: int


def problem_of(arguments: argparse.Namespace, length: int) -> Problem:
    """The fields of olmo_configs/150m.yaml, and the same weights and tokens at every call."""
    config = ModelConfig.new(
        d_model=arguments.width,
        n_heads=arguments.heads,
        n_layers=arguments.layers,
        mlp_ratio=8,
        activation_type="swiglu",
        rope=True,
        flash_attention=False,
        attention_dropout=0.0,
        residual_dropout=0.0,
        embedding_dropout=0.0,
        layer_norm_type="default",
        layer_norm_with_affine=False,
        bias_for_layer_norm=False,
        attention_layer_norm_with_affine=False,
        include_bias=False,
        weight_tying=True,
        max_sequence_length=length,
        vocab_size=arguments.vocabulary,
        embedding_size=arguments.vocabulary,
        eos_token_id=0,
        pad_token_id=0,
        init_device="cpu",
        init_fn="normal",
        init_std=0.06,  # larger than one trains with, so that a wrong influence would show
    )
    torch.manual_seed(0)
    olmo = OLMo(config).to(arguments.device)
    lengths = ContextLengths(arguments.short_context_length, length, arguments.targets_per_chunk)
    chunk_L = np.random.default_rng(length).integers(1, arguments.vocabulary, length)
    return Problem(OLMoCausalLM(olmo), lengths, chunk_L, arguments.tokens_per_batch)


def ours(problem: Problem) -> np.ndarray:
    """`leave_out` as the measuring stages call it: [T, F] nats."""
    sequence = own_context(problem.chunk_L, problem.lengths)
    spans_F2 = single_tokens(np.arange(problem.lengths.num_far_tokens_T[-1]))
    full = full_pass(problem.lm, sequence)
    without = leave_out(problem.lm, sequence, Batching(problem.tokens_per_batch), full, spans_F2)
    return without.losses.T - full.losses_T[:, None]


def losses_without(problem: Problem, removed_R: torch.Tensor) -> torch.Tensor:
    """loss(t | long without i) of all targets, in one pass a token: float32 [R, T], nats."""
    device = problem.lm.device
    tokens_L = torch.as_tensor(problem.chunk_L, device=device)
    targets_T = torch.as_tensor(problem.lengths.targets_T, device=device)
    rows_S = torch.arange(len(tokens_L) - 1, device=device)
    # A removed token still sees itself, lest it see nothing.
    hidden_RSS = (rows_S == removed_R[:, None])[:, None] & (rows_S[:, None] != rows_S)
    visible_RSS = causal_visibility(len(rows_S), device) & ~hidden_RSS
    tokens_RS = tokens_L[:-1].expand(len(removed_R), -1)
    # The last layer at every row, as a plain pass has it.
    hidden_RTD = problem.lm.hidden_states(tokens_RS, rows_S[None], visible_RSS, None)[:, targets_T - 1]
    losses = []
    for hidden_RD, target in zip(hidden_RTD.unbind(1), tokens_L[targets_T], strict=True):
        logits_RV = problem.lm.logits(hidden_RD).float()
        losses.append(cross_entropy(logits_RV, target.expand(len(logits_RV)), reduction="none"))
    return torch.stack(losses, dim=1)


def loop(problem: Problem) -> np.ndarray:
    """What ours has to beat."""
    removed_F = torch.arange(int(problem.lengths.num_far_tokens_T[-1]), device=problem.lm.device)
    batch_size = max(1, problem.tokens_per_batch // problem.lengths.long_context_length)
    losses = [losses_without(problem, part_R).cpu().numpy() for part_R in removed_F.split(batch_size)]
    long_losses_T = full_pass(problem.lm, own_context(problem.chunk_L, problem.lengths)).losses_T
    return (np.concatenate(losses) - long_losses_T).T


WAYS: dict[str, Callable[[Problem], np.ndarray]] = {"ours": ours, "loop": loop}


def refuse_difference(problem: Problem, tolerance: float) -> None:
    """Compare both on all pairs of a target and one of its distant tokens."""
    ours_TF, theirs_TF = (of_way(problem) for of_way in WAYS.values())
    is_far_TF = np.arange(ours_TF.shape[1]) < problem.lengths.num_far_tokens_T[:, None]
    difference_TF = np.where(is_far_TF, np.abs(ours_TF - theirs_TF), 0)
    target, position = np.unravel_index(difference_TF.argmax(), difference_TF.shape)
    if difference_TF[target, position] > tolerance * theirs_TF[is_far_TF].std():
        raise InputError(
            f"the loop gives the influence of token {position} on target {target} as"
            f" {theirs_TF[target, position]:.6g} nats, ours {ours_TF[target, position]:.6g}: nothing is shown"
        )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the sizes of the problem and of the model."""
    add = parser.add_argument
    add("--long-context-lengths", nargs="+", type=positive_int, default=[256, 512], help="ℓ, in tokens")
    add("--short-context-length", type=positive_int, default=64, help="s, in tokens")
    add("--targets-per-chunk", type=positive_int, default=64, help="m, targets at the end of the chunk")
    add("--layers", type=positive_int, default=8, help="of the random model")
    add("--width", type=positive_int, default=512, help="of the random model")
    add("--heads", type=positive_int, default=8, help="of the random model")
    add("--vocabulary", type=positive_int, default=4096, help="of the random model, in tokens")
    add("--tokens-per-batch", type=positive_int, default=2048, help="of both")
    add("--repeats", type=positive_int, default=3, help="timed rounds; medians are reported")
    add("--tolerance", type=float, default=0.001, help="largest difference, in standard deviations")
    add("--threads", type=positive_int, help="of the process; all cores if not given")
    add("--device", default="cpu", help="torch device")
    add("--out", type=Path, required=True, help="JSON file for every number")


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk length, print a table, write the JSON."""
    torch.set_num_threads(arguments.threads or len(os.sched_getaffinity(0)))
    keep_freed_memory()  # as the stages do
    rows: list[dict[str, Any]] = []
    for length in arguments.long_context_lengths:
        problem = problem_of(arguments, length)
        refuse_difference(problem, arguments.tolerance)
        seconds: dict[str, list[float]] = {name: [] for name in WAYS}
        for name in [*WAYS] * arguments.repeats:
            seconds[name].append(seconds_of(lambda way=WAYS[name], of=problem: way(of), problem.lm.device))
        medians = {f"{name}_seconds": median(of_way) for name, of_way in seconds.items()}
        rows.append({"long_context_length": length, **medians})
        print(f"{length} tokens: {medians}, {medians['loop_seconds'] / medians['ours_seconds']:.2f} times")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: str(value) for name, value in vars(arguments).items()}
    arguments.out.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
