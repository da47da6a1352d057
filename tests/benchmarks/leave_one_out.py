"""How fast the influence of every far token is measured: ours beside other ways, on one model and one chunk.

All have the same randomly initialised OLMo, tokens, machine and threads:
  ours                     leave_each_out, in float32 and bfloat16
  all-targets loop         one whole forward pass a removed token, all targets at once, in batches; our model
                           code, logits at targets only, the token masked or left out: the faster here
  forward per pair         stock OLMo, one masked forward pass for every (target, far token) pair
  captum FeatureAblation   captum around the loop's passes; left out where captum is not installed

What is fair. Pairs are those of m targets with the tokens more than s before them. The more targets share a
pass, the more a pass is worth, to the loop and to ours; a pass a pair gains nothing: so the factor over a
forward per pair depends on m, the factor over the loop hardly. Of long chunks ours is timed on blocks of
neighbours, since these share passes; the others are timed on evenly spread tokens of about --sample-tokens
token-forwards; the whole chunk is extrapolated. Timing goes round robin, --repeats times; medians count.

Numbers before speed. The influences that every float32 way measures must equal ours to within --tolerance of
their standard deviation, or that is said and nothing else. bfloat16 is not held to equality.

a few minutes on 2 cores:
  python tests/benchmarks/leave_one_out.py --long-context-lengths 256 --repeats 1 \\
      --out runs/benchmarks/quick.json

Shapes: L chunk, S rows, R removed tokens, T targets, F far tokens, N (target, removed token) pairs.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from olmo.config import ModelConfig
from olmo.model import OLMo

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pipeline.cli import InputError, positive_int, run_stage, stage_parser
from pipeline.measuring.contexts import Batching, full_pass, own_context
from pipeline.measuring.far_context import leave_each_out
from pipeline.measuring.flags import ContextLengths
from pipeline.models.devices import keep_freed_memory
from pipeline.models.interface import causal_visibility, losses_of_hidden_states
from pipeline.models.olmo import OLMoCausalLM

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MOST_REMOVALS = 600
NUM_BLOCKS = 12
BLOCK = 8
"""Beyond the first, ours is timed on so many blocks of so many neighbouring removals."""
TOKENS_TRIED, TOKENS_TRIED_ON_A_GPU = (1, 2048, 8192), (8192, 32768)
"""A batch of the loop holds so many tokens, or one pass."""


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds of one call, to its last kernel."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


class ModelSize(NamedTuple):
    """Of a randomly initialised OLMo with the fields of olmo_configs/150m.yaml."""

    num_layers: int
    width: int
    num_heads: int
    vocabulary_size: int
    mlp_ratio: int = 8
    init_std: float = 0.06
    """Larger than one trains with, so that far tokens matter and a wrong influence would show."""

    def model(self, num_positions: int, dtype: str, device: torch.device) -> OLMo:
        """The same weights at every call."""
        config = ModelConfig.new(
            d_model=self.width, n_heads=self.num_heads, n_layers=self.num_layers, mlp_ratio=self.mlp_ratio,
            activation_type="swiglu", rope=True, flash_attention=False, attention_dropout=0.0,
            residual_dropout=0.0, embedding_dropout=0.0, layer_norm_type="default",
            layer_norm_with_affine=False, bias_for_layer_norm=False, attention_layer_norm_with_affine=False,
            include_bias=False, weight_tying=True, max_sequence_length=num_positions,
            vocab_size=self.vocabulary_size, embedding_size=self.vocabulary_size, eos_token_id=0,
            pad_token_id=0, init_device="cpu", init_fn="normal", init_std=self.init_std,
        )  # fmt: skip
        torch.manual_seed(0)
        return OLMo(config).to(device=device, dtype=DTYPES[dtype]).eval().requires_grad_(False)


@dataclass(frozen=True)
class Problem:
    """What every way measures."""

    size: ModelSize
    lengths: ContextLengths
    tokens_per_batch: int = 2048
    sample_tokens: int = 16384
    device: torch.device = torch.device("cpu")

    @property
    def chunk_L(self) -> np.ndarray:
        """Uniformly drawn tokens, int64."""
        length = self.lengths.long_context_length
        return np.random.default_rng(length).integers(1, self.size.vocabulary_size, length)

    @property
    def num_far(self) -> int:
        """F: far tokens of the last target."""
        return int(self.lengths.num_far_tokens_T[-1])

    @property
    def num_pairs(self) -> int:
        """(target, far token) pairs of the chunk."""
        return int(self.lengths.num_far_tokens_T.sum())

    def spread(self, number: int) -> list[int]:
        """`number` far tokens of the last target, evenly spread, the first and the last among them."""
        return np.linspace(0, self.num_far - 1, min(number, self.num_far)).round().astype(int).tolist()


class Way:
    """One way of measuring, on its own copy of the model."""

    def __init__(self, problem: Problem, dtype: str = "float32") -> None:
        self.problem, self.dtype, self.note = problem, dtype, ""
        self.olmo = problem.size.model(problem.lengths.long_context_length, dtype, problem.device)
        self.lm = OLMoCausalLM(self.olmo, problem.lengths.long_context_length)
        self.long_losses_T = full_pass(self.lm, own_context(problem.chunk_L, problem.lengths)).losses_T

    @property
    def evaluations(self) -> float:
        """Evaluations for the whole chunk, over those of a timed run."""
        return self.problem.num_far / len(self.sample())

    def sample(self) -> list[int]:
        """The removed tokens of a timed run."""
        raise NotImplementedError

    def influences(self, removed_R: Sequence[int]) -> np.ndarray:
        """[T, R], nats; NaN where the token is no far context of the target, or was not measured."""
        raise NotImplementedError

    def far_only(self, influence_TR: np.ndarray, removed_R: Sequence[int]) -> np.ndarray:
        """NaN in place of what is no far context."""
        is_far_TR = np.asarray(removed_R) < self.problem.lengths.num_far_tokens_T[:, None]
        return np.where(is_far_TR, influence_TR, np.nan)


class Ours(Way):
    """`leave_each_out` as the measuring stages call it."""

    def sample(self) -> list[int]:
        # A GPU runs whole chunks in seconds, and needs many removals at once to be busy.
        if self.problem.num_far <= MOST_REMOVALS or self.problem.device.type == "cuda":
            return list(range(self.problem.num_far))
        # Neighbours share passes, so blocks of them stand for the whole; spread, since late ones cost less.
        starts = np.linspace(0, self.problem.num_far - BLOCK, NUM_BLOCKS).round().astype(int)
        return (starts[:, None] + np.arange(BLOCK)).ravel().tolist()

    @property
    def evaluations(self) -> float:
        # Reading the sequence costs about as much as two removals.
        return (self.problem.num_far + 2) / (len(self.sample()) + 2)

    def influences(self, removed_R: Sequence[int]) -> np.ndarray:
        rows_R = np.asarray(removed_R)
        sequence = own_context(self.problem.chunk_L, self.problem.lengths)
        batching = Batching(self.problem.tokens_per_batch)
        return leave_each_out(self.lm, sequence, batching, removed_rows_R=rows_R).influence_TF[:, rows_R]


class ForwardPerPair(Way):
    """A forward pass a pair, by stock OLMo with the edges into one token cut: the independent witness.

    One target a removed token: the sample goes through both evenly. Only the last row is projected.
    """

    def sample(self) -> list[int]:
        length = self.problem.lengths.long_context_length
        return self.problem.spread(max(2, self.problem.sample_tokens // length))

    @property
    def evaluations(self) -> float:
        return self.problem.num_pairs / len(self.sample())

    def influences(self, removed_R: Sequence[int]) -> np.ndarray:
        lengths = self.problem.lengths
        influence_TR = np.full((lengths.targets_per_chunk, len(removed_R)), np.nan)
        for column, removed in enumerate(removed_R):
            index = column % lengths.targets_per_chunk
            # The first targets' far contexts are the shortest: a token beyond goes with the last target.
            index = index if removed < lengths.num_far_tokens_T[index] else lengths.targets_per_chunk - 1
            loss = self._loss_without(int(lengths.targets_T[index]), removed)
            influence_TR[index, column] = loss - self.long_losses_T[index]
        return influence_TR

    @torch.inference_mode()
    def _loss_without(self, target: int, removed: int) -> float:
        token_ids_1S = torch.as_tensor(self.problem.chunk_L[None, :target], device=self.problem.device)
        visible_SS = without_edges_into(torch.tensor([removed], device=self.problem.device), target)
        bias = torch.zeros(1, 1, target, target, device=self.problem.device)
        bias.masked_fill_(~visible_SS[:, None], torch.finfo(bias.dtype).min)
        logits_V = self.olmo(token_ids_1S, attention_bias=bias, last_logits_only=True).logits[0, -1].float()
        return -logits_V.log_softmax(-1)[int(self.problem.chunk_L[target])].item()


class AllTargetsLoop(Way):
    """One whole forward pass a removed token, for all targets, several at a time: what ours has to beat.

    It runs our model code, so that it gets every kernel ours gets, its last layer at every row as a plain
    pass does, and projects at targets only. The token is masked or left out, whichever is faster, in the
    fastest of a few batch sizes; both are tried here and now.
    """

    def __init__(self, problem: Problem, dtype: str = "float32") -> None:
        super().__init__(problem, dtype)
        self._num_rows, self._masks, self.batch_size = problem.lengths.long_context_length - 1, True, 1
        hidden_states = self.lm.hidden_states

        def at_every_row(
            tokens: Any, positions: Any, visible: Any, query_rows_BT: torch.Tensor
        ) -> torch.Tensor:
            hidden_BSD = hidden_states(tokens, positions, visible, None)
            return hidden_BSD.gather(1, query_rows_BT[..., None].expand(-1, -1, hidden_BSD.shape[-1]))

        self.lm.hidden_states = at_every_row  # type: ignore[method-assign]
        tried = TOKENS_TRIED_ON_A_GPU if problem.device.type == "cuda" else TOKENS_TRIED
        sizes = sorted({min(problem.num_far, max(1, tokens // self._num_rows)) for tokens in tried})
        self.losses_without([0])  # the first call of a process is slower
        seconds = {}
        for self._masks in (True, False):
            for size in sizes:
                run = seconds_of(lambda size=size: self.losses_without(list(range(size))), problem.device)
                seconds[self._masks, size] = run / size
        self._masks, self.batch_size = min(seconds, key=seconds.__getitem__)
        self.note = f"tokens {'masked' if self._masks else 'left out'}, {self.batch_size} at a time"

    def sample(self) -> list[int]:
        wanted = max(2, self.problem.sample_tokens // self._num_rows)
        return self.problem.spread(-(-wanted // self.batch_size) * self.batch_size)

    def influences(self, removed_R: Sequence[int]) -> np.ndarray:
        starts = range(0, len(removed_R), self.batch_size)
        losses_RT = [self.losses_without(removed_R[s : s + self.batch_size]).cpu().numpy() for s in starts]
        return self.far_only((np.concatenate(losses_RT) - self.long_losses_T).T, removed_R)

    def losses_without(self, removed_R: Sequence[int]) -> torch.Tensor:
        """loss(t | long without i): float32 [R, T], nats."""
        device, num_removed = self.problem.device, len(removed_R)
        removed_R1 = torch.as_tensor(removed_R, device=device)[:, None]
        tokens_S = torch.as_tensor(self.problem.chunk_L[:-1], device=device)
        targets_T = torch.as_tensor(self.problem.lengths.targets_T, device=device)
        target_ids_T = torch.as_tensor(self.problem.chunk_L, device=device)[targets_T]
        target_ids_RT = target_ids_T.expand(num_removed, -1)
        queries_RT = (targets_T - 1).expand(num_removed, -1)
        if self._masks:
            positions_1S = torch.arange(self._num_rows, device=device)[None]
            visible = without_edges_into(removed_R1[:, 0], self._num_rows)
            tokens_RS = tokens_S.expand(num_removed, -1)
            hidden_RTD = self.lm.hidden_states(tokens_RS, positions_1S, visible, queries_RT)
            return losses_of_hidden_states(self.lm, hidden_RTD, target_ids_RT)
        kept_RS = torch.arange(self._num_rows - 1, device=device)
        kept_RS = kept_RS + (kept_RS >= removed_R1)
        hidden_RTD = self.lm.hidden_states(tokens_S[kept_RS], kept_RS, None, queries_RT - 1)
        return losses_of_hidden_states(self.lm, hidden_RTD, target_ids_RT)


class CaptumFeatureAblation(AllTargetsLoop):
    """captum's FeatureAblation of a function that returns all targets' losses by the loop's passes."""

    def __init__(self, problem: Problem, dtype: str = "float32") -> None:
        from captum.attr import FeatureAblation

        super().__init__(problem, dtype)
        self._ablation = FeatureAblation

    def influences(self, removed_R: Sequence[int]) -> np.ndarray:
        removed = np.asarray(removed_R)

        def losses(present_BR: torch.Tensor) -> torch.Tensor:
            if bool(present_BR.all()):
                # captum asks once with everything there, which a careful caller has at hand.
                return torch.as_tensor(self.long_losses_T)[None]
            return self.losses_without(removed[present_BR.argmin(1).numpy()].tolist()).cpu()

        with warnings.catch_warnings(action="ignore"):
            differences_TR = self._ablation(losses).attribute(
                torch.ones(1, len(removed)), baselines=0, perturbations_per_eval=self.batch_size
            )
        return self.far_only(-differences_TR.numpy(), removed_R)


def without_edges_into(removed_R: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Causal visibility without one token, bool [R, S, S]; it still sees itself, lest it see nothing."""
    rows_S = torch.arange(num_rows, device=removed_R.device)
    hidden_RSS = (rows_S == removed_R[:, None])[:, None] & (rows_S[:, None] != rows_S)
    return causal_visibility(num_rows, removed_R.device) & ~hidden_RSS


def timed(ways: dict[str, Way], repeats: int, tolerance: float) -> dict[str, float]:
    """Seconds of the whole chunk, by way, after all float32 numbers have been compared with ours.

    Raises:
        InputError: a way's influence differs from ours by more than `tolerance` standard deviations.
    """
    problem = next(iter(ways.values())).problem
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        found: dict[str, np.ndarray] = {}
        for name, way in ways.items():
            removed, values_TF = way.sample(), np.full((len(way.long_losses_T), problem.num_far), np.nan)
            found[name] = values_TF

            def run(way: Way = way, removed: list[int] = removed, values_TF: np.ndarray = values_TF) -> None:
                values_TF[:, removed] = way.influences(removed)

            seconds[name].append(way.evaluations * seconds_of(run, problem.device))
        exact = [name for name in found if name.endswith("float32")]
        for name in exact:
            ours = next(one for one in exact if one.startswith("ours"))
            refuse_difference(name, found[ours], found[name], tolerance * float(np.nanstd(found[ours])))
    return {name: median(of_way) for name, of_way in seconds.items()}


def refuse_difference(name: str, ours_TF: np.ndarray, theirs_TF: np.ndarray, allowed: float) -> None:
    """Compare two measurements on the pairs that both have; there must be some."""
    both = ~(np.isnan(ours_TF) | np.isnan(theirs_TF))
    assert both.any(), f"{name} measured no pair that ours did"
    difference_TF = np.where(both, np.abs(ours_TF - theirs_TF), 0)
    target, position = np.unravel_index(difference_TF.argmax(), difference_TF.shape)
    if difference_TF[target, position] > allowed:
        raise InputError(
            f"{name} gives the influence of token {position} on target {target} as"
            f" {theirs_TF[target, position]:.6g} nats, ours {ours_TF[target, position]:.6g}: more than"
            f" {allowed:.2g} apart, so nothing is shown"
        )


def rows_of(ways: dict[str, Way], seconds: dict[str, float]) -> list[dict[str, Any]]:
    """What the JSON says of one chunk length, a row a way."""
    problem = next(iter(ways.values())).problem
    return [
        {
            "way": name, "long_context_length": problem.lengths.long_context_length,
            "chunk_seconds": seconds[name], "milliseconds_per_pair": 1000 * seconds[name] / problem.num_pairs,
            "times_as_fast_as_pairs": seconds.get("forward per pair, float32", np.nan) / seconds[name],
            "times_as_fast_as_loop": seconds[f"all-targets loop, {way.dtype}"] / seconds[name],
            "times_as_fast_as_float32_loop": seconds.get("all-targets loop, float32", np.nan) / seconds[name],
            "how": way.note,
        }
        for name, way in ways.items()
    ]  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The command line."""
    script = stage_parser(__doc__)
    add = script.add_argument
    add("--long-context-lengths", nargs="+", type=positive_int, default=[256, 512], help="ℓ, in tokens")
    add("--short-context-length", type=positive_int, default=64, help="s, in tokens")
    add("--targets-per-chunk", type=positive_int, default=64, help="m, targets at the end of the chunk")
    add("--layers", type=positive_int, default=8, help="of the random model")
    add("--width", type=positive_int, default=512, help="of the random model")
    add("--heads", type=positive_int, default=8, help="of the random model")
    add("--vocabulary", type=positive_int, default=4096, help="of the random model, in tokens")
    add("--tokens-per-batch", type=positive_int, default=2048, help="of ours")
    add("--sample-tokens", type=positive_int, default=16384, help="token-forwards of a timed sample, about")
    add("--repeats", type=positive_int, default=3, help="timed rounds; medians are reported")
    add("--tolerance", type=float, default=0.001, help="largest difference, in standard deviations")
    add("--threads", type=positive_int, help="of the process; all cores if not given")
    add("--device", default="cpu", help="torch device")
    add("--out", type=Path, required=True, help="JSON file for every number")
    return script


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk length, print a table, write the JSON."""
    torch.set_num_threads(arguments.threads or len(os.sched_getaffinity(0)))
    keep_freed_memory()  # as the stages do
    device = torch.device(arguments.device)
    size = ModelSize(arguments.layers, arguments.width, arguments.heads, arguments.vocabulary)
    kinds: dict[str, Callable[[Problem, str], Way]] = {
        "ours": Ours, "all-targets loop": AllTargetsLoop, "forward per pair": ForwardPerPair,
        "captum FeatureAblation": CaptumFeatureAblation,
    }  # fmt: skip
    if find_spec("captum") is None:
        del kinds["captum FeatureAblation"]
    names = [(kind, "float32") for kind in kinds] + [("ours", "bfloat16"), ("all-targets loop", "bfloat16")]
    rows: list[dict[str, Any]] = []
    print(f"{'':30}{'ℓ':>6}{'ms/pair':>10}{'x pair':>8}{'x loop':>8}  how")
    for length in arguments.long_context_lengths:
        lengths = ContextLengths(arguments.short_context_length, length, arguments.targets_per_chunk)
        problem = Problem(size, lengths, arguments.tokens_per_batch, arguments.sample_tokens, device)
        ways = {f"{kind}, {dtype}": kinds[kind](problem, dtype) for kind, dtype in names}
        of_length = rows_of(ways, timed(ways, arguments.repeats, arguments.tolerance))
        for row in of_length:
            print(
                f"{row['way']:30}{length:6}{row['milliseconds_per_pair']:10.4f}"
                f"{row['times_as_fast_as_pairs']:8.1f}{row['times_as_fast_as_float32_loop']:8.2f}"
                f"  {row['how']}",
                flush=True,
            )
        rows += of_length
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        report = {"settings": vars(arguments), "rows": rows}
        arguments.out.write_text(json.dumps(report, indent=1, default=str) + "\n")


if __name__ == "__main__":
    run_stage(parser(), main)
