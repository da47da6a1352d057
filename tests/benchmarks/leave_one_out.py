"""Time the influence of every distant token of one chunk, with our code and with other methods.

All use the same randomly initialized OLMo, tokens, machine, threads and tokens in a batch:
  ours                     leave_out
  all-targets loop         one whole masked forward pass per removed token, for all targets at once; our model
                           code, logits at targets only
  forward per pair         stock OLMo, one masked forward pass for every (target, distant token) pair
  captum FeatureAblation   captum around the loop's passes; left out if captum is not installed

Pairs are those of m targets with the tokens more than s before them. The loop and our code share one pass
among all targets, one pass per pair does not: so the speedup over one pass per pair depends on m, and the
speedup over the loop hardly does. Our code measures the whole chunk; the other methods are timed on evenly
spread tokens, about --sample-tokens forward tokens, and extrapolated to the whole chunk. Timing goes round
robin, --repeats times; medians count.

The influences that each float32 method measures must equal ours to within --tolerance of their standard
deviation; otherwise the program reports only the difference. bfloat16 is not held to equality.

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
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
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

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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
    """What every way measures, in one dtype."""

    lm: OLMoCausalLM
    olmo: OLMo
    lengths: ContextLengths
    chunk_L: np.ndarray
    tokens_per_batch: int

    @property
    def long_losses_T(self) -> np.ndarray:
        """loss(t | everything before t)."""
        return full_pass(self.lm, own_context(self.chunk_L, self.lengths)).losses_T

    @property
    def batch_size(self) -> int:
        """Passes of the loop at a time."""
        return max(1, self.tokens_per_batch // self.lengths.long_context_length)


def problem_of(arguments: argparse.Namespace, length: int, dtype: str) -> Problem:
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
    olmo = OLMo(config).to(device=arguments.device, dtype=DTYPES[dtype]).eval().requires_grad_(False)
    lengths = ContextLengths(arguments.short_context_length, length, arguments.targets_per_chunk)
    chunk_L = np.random.default_rng(length).integers(1, arguments.vocabulary, length)
    return Problem(OLMoCausalLM(olmo), olmo, lengths, chunk_L, arguments.tokens_per_batch)


def ours(problem: Problem, removed_R: np.ndarray) -> np.ndarray:
    """`leave_out` as the measuring stages call it: [T, R] nats."""
    sequence = own_context(problem.chunk_L, problem.lengths)
    batching = Batching(problem.tokens_per_batch)
    full = full_pass(problem.lm, sequence)
    without = leave_out(problem.lm, sequence, batching, full, single_tokens(removed_R))
    return without.losses.T - full.losses_T[:, None]


def without_edges_into(removed_R: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Causal visibility without one token, bool [R, S, S]; it still sees itself, lest it see nothing."""
    rows_S = torch.arange(num_rows, device=removed_R.device)
    hidden_RSS = (rows_S == removed_R[:, None])[:, None] & (rows_S[:, None] != rows_S)
    return causal_visibility(num_rows, removed_R.device) & ~hidden_RSS


@torch.inference_mode()
def forward_per_pair(problem: Problem, removed_R: np.ndarray) -> np.ndarray:
    """Stock OLMo with the edges into one token cut: the independent witness.

    One target a removed token: the sample goes through both evenly.
    """
    lengths = problem.lengths
    device = problem.lm.device
    long_losses_T = problem.long_losses_T
    influence_TR = np.full((lengths.targets_per_chunk, len(removed_R)), np.nan)
    for column, removed in enumerate(removed_R):
        index = column % lengths.targets_per_chunk
        # The first targets have the fewest distant tokens: a token beyond goes with the last target.
        index = index if removed < lengths.num_far_tokens_T[index] else lengths.targets_per_chunk - 1
        target = int(lengths.targets_T[index])
        visible_1SS = without_edges_into(torch.tensor([removed], device=device), target)
        bias = torch.zeros(1, 1, target, target, device=device)
        bias.masked_fill_(~visible_1SS[:, None], torch.finfo(bias.dtype).min)
        token_ids_1S = torch.as_tensor(problem.chunk_L[None, :target], device=device)
        logits_V = problem.olmo(token_ids_1S, attention_bias=bias, last_logits_only=True).logits[0, -1]
        loss = -logits_V.float().log_softmax(-1)[int(problem.chunk_L[target])].item()
        influence_TR[index, column] = loss - long_losses_T[index]
    return influence_TR


def losses_without(problem: Problem, removed_R: np.ndarray) -> torch.Tensor:
    """loss(t | long without i) of all targets, in one pass per token: float32 [R, T], nats."""
    device = problem.lm.device
    num_rows = problem.lengths.long_context_length - 1
    tokens_L = torch.as_tensor(problem.chunk_L, device=device)
    targets_T = torch.as_tensor(problem.lengths.targets_T, device=device)
    visible_RSS = without_edges_into(torch.as_tensor(removed_R, device=device), num_rows)
    positions_1S = torch.arange(num_rows, device=device)[None]
    tokens_RS = tokens_L[:-1].expand(len(removed_R), -1)
    # The last layer at every row, as a plain pass has it.
    hidden_RTD = problem.lm.hidden_states(tokens_RS, positions_1S, visible_RSS, None)[:, targets_T - 1]
    losses = []
    for hidden_RD, target in zip(hidden_RTD.unbind(1), tokens_L[targets_T], strict=True):
        logits_RV = problem.lm.logits(hidden_RD).float()
        losses.append(cross_entropy(logits_RV, target.expand(len(logits_RV)), reduction="none"))
    return torch.stack(losses, dim=1)


def all_targets_loop(problem: Problem, removed_R: np.ndarray) -> np.ndarray:
    """What ours has to beat."""
    starts = range(problem.batch_size, len(removed_R), problem.batch_size)
    losses = [losses_without(problem, part_R).cpu().numpy() for part_R in np.split(removed_R, starts)]
    return (np.concatenate(losses) - problem.long_losses_T).T


def captum_feature_ablation(problem: Problem, removed_R: np.ndarray) -> np.ndarray:
    """captum's FeatureAblation of a function that returns all targets' losses by the loop's passes."""
    from captum.attr import FeatureAblation

    long_losses_T = problem.long_losses_T

    def losses(present_BR: torch.Tensor) -> torch.Tensor:
        if bool(
            present_BR.all()
        ):  # captum asks once with everything there, which a careful caller has at hand
            return torch.as_tensor(long_losses_T)[None]
        return losses_without(problem, removed_R[present_BR.argmin(1).numpy()]).cpu()

    with warnings.catch_warnings(action="ignore"):
        differences_TR = FeatureAblation(losses).attribute(
            torch.ones(1, len(removed_R)), baselines=0, perturbations_per_eval=problem.batch_size
        )
    return -differences_TR.numpy()


WAYS: dict[str, Callable[[Problem, np.ndarray], np.ndarray]] = {
    "ours": ours,
    "all-targets loop": all_targets_loop,
    "forward per pair": forward_per_pair,
    "captum FeatureAblation": captum_feature_ablation,
}


def timed(name: str, problem: Problem, sample_tokens: int) -> tuple[float, np.ndarray]:
    """Seconds of the whole chunk, and the influences [T, F] that were measured, NaN elsewhere."""
    num_far_T = problem.lengths.num_far_tokens_T
    wanted = num_far_T[-1] if name == "ours" else max(2, sample_tokens // problem.lengths.long_context_length)
    removed_R = np.unique(np.linspace(0, num_far_T[-1] - 1, wanted).round().astype(int))
    influence_TF = np.full((len(num_far_T), num_far_T[-1]), np.nan)

    def run() -> None:
        influence_TF[:, removed_R] = WAYS[name](problem, removed_R)

    seconds = seconds_of(run, problem.lm.device)
    evaluations = num_far_T.sum() if name == "forward per pair" else num_far_T[-1]
    is_far_TF = np.arange(num_far_T[-1]) < num_far_T[:, None]
    return seconds * evaluations / len(removed_R), np.where(is_far_TF, influence_TF, np.nan)


def refuse_difference(name: str, ours_TF: np.ndarray, theirs_TF: np.ndarray, tolerance: float) -> None:
    """Compare two measurements on the pairs that both have; there must be some."""
    both = ~(np.isnan(ours_TF) | np.isnan(theirs_TF))
    assert both.any(), f"{name} measured no pair that ours did"
    difference_TF = np.where(both, np.abs(ours_TF - theirs_TF), 0)
    target, position = np.unravel_index(difference_TF.argmax(), difference_TF.shape)
    if difference_TF[target, position] > tolerance * float(np.nanstd(ours_TF)):
        raise InputError(
            f"{name} gives the influence of token {position} on target {target} as"
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
    add("--tokens-per-batch", type=positive_int, default=2048, help="of every way but the pairs")
    add("--sample-tokens", type=positive_int, default=16384, help="forward-tokens of a timed sample, about")
    add("--repeats", type=positive_int, default=3, help="timed rounds; medians are reported")
    add("--tolerance", type=float, default=0.001, help="largest difference, in standard deviations")
    add("--threads", type=positive_int, help="of the process; all cores if not given")
    add("--device", default="cpu", help="torch device")
    add("--out", type=Path, required=True, help="JSON file for every number")


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk length, print a table, write the JSON."""
    torch.set_num_threads(arguments.threads or len(os.sched_getaffinity(0)))
    keep_freed_memory()  # as the stages do
    names = [(name, "float32") for name in WAYS if "captum" not in name or find_spec("captum")]
    names += [("ours", "bfloat16"), ("all-targets loop", "bfloat16")]
    rows: list[dict[str, Any]] = []
    print(f"{'':32}{'ℓ':>6}{'ms/pair':>10}{'x pair':>8}{'x loop':>8}")
    for length in arguments.long_context_lengths:
        problems = {dtype: problem_of(arguments, length, dtype) for dtype in DTYPES}
        seconds: dict[tuple[str, str], list[float]] = {name: [] for name in names}
        for _ in range(arguments.repeats):
            for name, dtype in names:
                of_run, found_TF = timed(name, problems[dtype], arguments.sample_tokens)
                seconds[name, dtype].append(of_run)
                if (name, dtype) == ("ours", "float32"):
                    ours_TF = found_TF
                elif dtype == "float32":
                    refuse_difference(name, ours_TF, found_TF, arguments.tolerance)
        medians = {name: median(of_way) for name, of_way in seconds.items()}
        num_pairs = int(problems["float32"].lengths.num_far_tokens_T.sum())
        for (name, dtype), of_way in medians.items():
            row = {
                "way": f"{name}, {dtype}",
                "long_context_length": length,
                "chunk_seconds": of_way,
                "milliseconds_per_pair": 1000 * of_way / num_pairs,
                "times_as_fast_as_pairs": medians["forward per pair", "float32"] / of_way,
                "times_as_fast_as_float32_loop": medians["all-targets loop", "float32"] / of_way,
            }
            rows.append(row)
            print(
                f"{row['way']:32}{length:6}{row['milliseconds_per_pair']:10.4f}"
                f"{row['times_as_fast_as_pairs']:8.1f}{row['times_as_fast_as_float32_loop']:8.2f}",
                flush=True,
            )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(
        json.dumps({"settings": vars(arguments), "rows": rows}, indent=1, default=str) + "\n"
    )


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
