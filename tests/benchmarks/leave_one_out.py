"""Time the influence of every distant token of one chunk, with our code and with other methods.

All use the same randomly initialized OLMo, tokens, machine, threads and tokens in a batch:
  ours                     leave_out
  all-targets loop         one whole masked forward pass per removed token, for all targets at once; our model
                           code, logits at targets only
  captum FeatureAblation   captum around the loop's passes

Pairs are those of m targets with the tokens more than s before them. Our code measures the whole chunk; the
other methods are timed on evenly spread tokens, about --sample-tokens forward tokens, and extrapolated to the
whole chunk. Timing goes round robin, --repeats times; medians count.

The influences that each method measures must equal ours to within a thousandth of their standard deviation;
otherwise the program reports only the difference.

A few minutes on two cores:
  python tests/benchmarks/leave_one_out.py --long-context-lengths 256 --repeats 1 \\
      --out runs/benchmarks/quick.json

Shapes: L chunk, S rows, R removed tokens, T targets, F distant tokens.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import torch
from captum.attr import FeatureAblation
from olmo.config import ModelConfig
from olmo.model import OLMo
from torch.nn.functional import cross_entropy
from torch.utils.benchmark import timer

from sparsity_length.cli import InputError, Stage, positive_int
from sparsity_length.measuring import contexts, search, settings
from sparsity_length.models import devices, interface, olmo

TOLERANCE = 0.001
"""Largest difference of two ways, in standard deviations of the influences."""


@dataclass(frozen=True)
class Problem:
    """What every way measures."""

    lm: olmo.OLMoCausalLM
    lengths: settings.ContextLengths
    chunk_L: np.ndarray
    tokens_per_batch: int

    @property
    def long_losses_T(self) -> np.ndarray:
        """loss(t | everything before t)."""
        return contexts.full_pass(self.lm, contexts.own_context(self.chunk_L, self.lengths)).losses_T

    @property
    def batch_size(self) -> int:
        """Passes of the loop at a time."""
        return max(1, self.tokens_per_batch // self.lengths.long_context_length)


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
    lm = olmo.OLMoCausalLM(OLMo(config).eval().requires_grad_(False))
    lengths = settings.ContextLengths(arguments.short_context_length, length, arguments.targets_per_chunk)
    chunk_L = np.random.default_rng(length).integers(1, arguments.vocabulary, length)
    return Problem(lm, lengths, chunk_L, arguments.tokens_per_batch)


def ours(problem: Problem, removed_R: np.ndarray) -> np.ndarray:
    """`leave_out` as the measuring stages call it: [T, R] nats."""
    sequence = contexts.own_context(problem.chunk_L, problem.lengths)
    batching = contexts.Batching(problem.tokens_per_batch)
    full = contexts.full_pass(problem.lm, sequence)
    without = search.leave_out(problem.lm, sequence, batching, full, search.single_tokens(removed_R))
    return without.losses.T - full.losses_T[:, None]


def losses_without(problem: Problem, removed_R: np.ndarray) -> torch.Tensor:
    """loss(t | long without i) of all targets, in one pass per token: float32 [R, T], nats."""
    tokens_L = torch.as_tensor(problem.chunk_L)
    targets_T = torch.as_tensor(problem.lengths.targets_T)
    tokens_RS = tokens_L[:-1].expand(len(removed_R), -1)
    rows_S = torch.arange(len(tokens_L) - 1)
    is_removed_RS = rows_S == torch.as_tensor(removed_R)[:, None]
    # A removed token still sees itself, lest it see nothing.
    hidden_RSS = is_removed_RS[:, None] & ~is_removed_RS[:, :, None]
    visible_RSS = interface.causal_visibility(len(rows_S), rows_S.device) & ~hidden_RSS
    # The last layer at every row, as a plain pass has it.
    hidden_RTD = problem.lm.hidden_states(tokens_RS, rows_S[None], visible_RSS, None)[:, targets_T - 1]
    logits_RVT = problem.lm.logits(hidden_RTD).transpose(1, 2)
    return cross_entropy(logits_RVT, tokens_L[targets_T].expand(len(removed_R), -1), reduction="none")


def all_targets_loop(problem: Problem, removed_R: np.ndarray) -> np.ndarray:
    """What ours has to beat."""
    starts = range(problem.batch_size, len(removed_R), problem.batch_size)
    losses_RT = np.concatenate([losses_without(problem, part_R) for part_R in np.split(removed_R, starts)])
    return (losses_RT - problem.long_losses_T).T


def captum_feature_ablation(problem: Problem, removed_R: np.ndarray) -> np.ndarray:
    """captum's FeatureAblation of a function that returns all targets' losses by the loop's passes."""

    def losses(present_BR: torch.Tensor) -> torch.Tensor:
        if bool(present_BR.all()):  # asked once
            return torch.as_tensor(problem.long_losses_T)[None]
        return losses_without(problem, removed_R[present_BR.argmin(1).numpy()])

    differences_TR = FeatureAblation(losses).attribute(
        torch.ones(1, len(removed_R)), baselines=0, perturbations_per_eval=problem.batch_size
    )
    return -differences_TR.numpy()


WAYS: dict[str, Callable[[Problem, np.ndarray], np.ndarray]] = {
    "ours": ours,
    "all-targets loop": all_targets_loop,
    "captum FeatureAblation": captum_feature_ablation,
}


def timed(name: str, problem: Problem, sample_tokens: int) -> tuple[float, np.ndarray]:
    """Seconds of the whole chunk, and the influences [T, F] that were measured, NaN elsewhere."""
    num_far_T = problem.lengths.num_far_tokens_T
    most = num_far_T[-1]
    wanted = most if name == "ours" else max(2, sample_tokens // problem.lengths.long_context_length)
    removed_R = np.unique(np.linspace(0, most - 1, wanted).round().astype(int))
    influence_TF = np.full((len(num_far_T), most), np.nan)
    started = timer()
    influence_TF[:, removed_R] = WAYS[name](problem, removed_R)
    seconds = (timer() - started) * most / len(removed_R)
    return seconds, np.where(np.arange(most) < num_far_T[:, None], influence_TF, np.nan)


def refuse_difference(name: str, ours_TF: np.ndarray, theirs_TF: np.ndarray) -> None:
    """Compare two measurements on the pairs that both have; there must be some."""
    difference_TF = np.abs(ours_TF - theirs_TF)
    target, position = np.unravel_index(np.nanargmax(difference_TF), difference_TF.shape)
    if difference_TF[target, position] > TOLERANCE * float(np.nanstd(ours_TF)):
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
    for name, default in {"layers": 8, "width": 512, "heads": 8, "vocabulary": 4096}.items():
        add(f"--{name}", type=positive_int, default=default, help="of the random model")
    add("--tokens-per-batch", type=positive_int, default=2048, help="of every way")
    add("--sample-tokens", type=positive_int, default=16384, help="forward-tokens of a timed sample, about")
    add("--repeats", type=positive_int, default=3, help="timed rounds; medians are reported")
    add("--threads", type=positive_int, default=torch.get_num_threads(), help="of the process")
    add("--out", type=Path, required=True, help="JSON file for every number")


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk length, print a table, write the JSON."""
    torch.set_num_threads(arguments.threads)
    devices.keep_freed_memory()  # as the stages do
    rows = []
    for length in arguments.long_context_lengths:
        problem = problem_of(arguments, length)
        seconds = defaultdict[str, list[float]](list)
        found = {}
        for name in [*WAYS] * arguments.repeats:
            of_run, found[name] = timed(name, problem, arguments.sample_tokens)
            seconds[name].append(of_run)
            refuse_difference(name, found["ours"], found[name])
        for name, of_way in seconds.items():
            rows.append(
                {
                    "way": name,
                    "long_context_length": length,
                    "chunk_seconds": median(of_way),
                    "milliseconds_per_pair": 1000 * median(of_way) / problem.lengths.num_far_tokens_T.sum(),
                    "times_as_fast_as_loop": median(seconds["all-targets loop"]) / median(of_way),
                }
            )
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.4g}".format))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(
        json.dumps({"settings": vars(arguments), "rows": rows}, indent=1, default=str) + "\n"
    )


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
