"""Sparse functional attention (Definition 3.3), fitted on planted correlations, and its error beyond.

    h(X) = Σ_S g_key(S, X_S) g_val(X_S) / Σ_S g_key(S, X_S)      over the k-subsets S of the positions

X_S are the tokens at S in the order of their positions; with k = 1 this is a bag of words. From the paper:
that form, relativity (Assumption 3.2: shifting S leaves its key as it is), and the objective of Theorem 4.3,
the mean loss over lengths of L/2 to L. Theorem 4.3 speaks of the condition `local`, Theorem 4.4 of
`halves_coupled`; `halves_trained_keys` leaves out their assumption of near position IDs. Our choices:

- The key is exp of a free number for every (relation of S, X_S), 0 where position IDs differ by `key_reach`
  or more. A relation is the differences of IDs from the first one's: for k = 2 and reach 3, -2 … 2.
- No training sequence shows the keys of longer relations, and nothing keeps them small. So in the theorems'
  conditions keys reach L_local, elsewhere as far as training sequences do.
- Labels are -1 and 1, values free numbers between them, the loss is the squared error (saying 0 costs 1), by
  Adam on fresh sequences, each step on one length drawn uniformly.

Bounds are upper bounds up to constants that the paper does not state, 1 here: compare slopes, not heights.
An interval is the range over seeds. Writes results (columns: pipeline/RESULTS.md), complete fits of which are
kept when the command is repeated, and the figure sparse_functional_attention.

all conditions, six seeds (some minutes of one core), and in seconds:
  python -m analysis.figures.theory --results runs/theory/results --figures runs/theory/figures
  python -m analysis.figures.theory --results runs/demo/theory --figures runs/demo/figures \\
      --conditions local halves_coupled --seeds 0 1 2 --steps 200 --num-test-sequences 100

Dimension letters: B sequences, S positions, N subsets within reach, K = k positions of a subset.
"""

import argparse
from collections.abc import Hashable, Iterator
from contextlib import nullcontext
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn

from analysis import drawing
from analysis.read import interval_columns
from pipeline.cli import InputError, folder_path, positive_int, progress, run_stage, stage_parser
from pipeline.results.read import read_artefact
from pipeline.results.statistics import Interval
from pipeline.results.write import StageOutput
from pipeline.synthetic.tasks import (
    PLANTED_VOCABULARY,
    draw_planted,
    local_places,
    uniform_places,
)

STAGE = "sparse_functional_attention"
VOCABULARY_SIZE = len(PLANTED_VOCABULARY) - 1
"""Signals and noise; the "=" that asks is left out."""
BATCH_SIZE = 32
LEARNING_RATE = 0.1
NUM_MEASURED_STEPS = 5
"""The last step, and a half, a quarter, an eighth and a sixteenth of it."""
PositionIds = tuple[int, ...]


# The law of S*, position IDs, and the reach of keys


def places_across_halves(
    size: int, sparsity: int, generator: np.random.Generator, *, local_length: int
) -> np.ndarray:
    """Draw k places, the first ⌈k/2⌉ in the first half of the sequence, the others in its second half.

    Counted from the start of their half, all lie in one block of `local_length` places: near each other in
    coupled position IDs, half a sequence apart in contiguous ones. `size` is even.
    """
    half = size // 2
    num_places = min(local_length, half)
    first = generator.integers(0, half - num_places, endpoint=True)
    places = [uniform_places(num_places, num, generator) for num in ((sparsity + 1) // 2, sparsity // 2)]
    return first + np.concatenate([places[0], half + places[1]])


class Lengths(NamedTuple):
    """Tokens: of training, of S* and of the tests."""

    train_context_length: int
    """L, a multiple of 4: training sequences have L/2 to L tokens."""
    local_length: int
    """L_local, at most L/4."""
    length_multiples: tuple[int, ...] = (2, 4, 8)
    """Tested at these multiples of L, and at every length of training."""

    @property
    def of_training(self) -> tuple[int, ...]:
        """The even lengths of [L/2, L]; even, so that sequences have halves."""
        return tuple(range(self.train_context_length // 2, self.train_context_length + 1, 2))

    @property
    def of_tests(self) -> tuple[int, ...]:
        """Those of training, and beyond."""
        return (*self.of_training, *(times * self.train_context_length for times in self.length_multiples))


class Condition(NamedTuple):
    """Where S* stands ("local" or "halves"), the scheme of position IDs, the reach of the keys."""

    position_law: str
    position_scheme: str
    reaches_as_trained: bool

    def position_ids(self, size: int) -> PositionIds:
        """Of a sequence of this size; coupled, both halves count from 0: of 6 tokens 0 1 2 0 1 2."""
        return 2 * tuple(range(size // 2)) if self.position_scheme == "coupled" else tuple(range(size))

    def key_reach(self, lengths: Lengths) -> int:
        """In position IDs."""
        return lengths.train_context_length if self.reaches_as_trained else lengths.local_length


CONDITIONS = {
    "local": Condition("local", "contiguous", reaches_as_trained=False),
    "halves_coupled": Condition("halves", "coupled", reaches_as_trained=False),
    "halves_trained_keys": Condition("halves", "contiguous", reaches_as_trained=True),
}


# The class


@lru_cache(maxsize=64)
def subsets_within_reach(position_ids_S: PositionIds, sparsity: int, key_reach: int) -> np.ndarray:
    """Every set of k positions whose IDs lie within reach: subsets_NK, int64, each set ascending.

    Grown position by position, so that the cost follows the number of subsets within reach.
    """
    ids_S = np.array(position_ids_S)
    places_S = np.arange(len(position_ids_S))
    subsets_NK = places_S[:, None]
    for _ in range(sparsity - 1):
        distances_NKS = np.abs(ids_S[subsets_NK][:, :, None] - ids_S)
        is_next_NS = (distances_NKS < key_reach).all(axis=1) & (places_S > subsets_NK[:, -1:])
        chosen_N, added_N = np.nonzero(is_next_NS)
        subsets_NK = np.column_stack([subsets_NK[chosen_N], added_N])
    subsets_NK.setflags(write=False)  # shared by all who ask again
    return subsets_NK


def relations_of(position_ids_S: PositionIds, subsets_NK: np.ndarray, key_reach: int) -> np.ndarray:
    """The number of each subset's relation, its digits the differences of its IDs: relations_N, int64."""
    ids_NK = np.array(position_ids_S)[subsets_NK]
    relations_N = np.zeros(len(subsets_NK), dtype=np.int64)
    for differences_N in (ids_NK[:, 1:] - ids_NK[:, :1]).T:
        relations_N = relations_N * (2 * key_reach - 1) + differences_N + key_reach - 1
    return relations_N


class SparseFunctionalAttention(nn.Module):
    """h, with its keys and values as tables to be learnt."""

    def __init__(
        self, sparsity: int, vocabulary_size: int, key_reach: int, generator: torch.Generator
    ) -> None:
        """All keys 1, all values near 0; without the noise of `generator` none would be told from another."""
        super().__init__()
        self.sparsity = sparsity
        self.vocabulary_size = vocabulary_size
        self.key_reach = key_reach
        num_contents = vocabulary_size**sparsity
        num_relations = (2 * key_reach - 1) ** (sparsity - 1)
        self.log_keys = nn.Parameter(torch.zeros(num_relations * num_contents))
        self.raw_values = nn.Parameter(0.1 * torch.randn(num_contents, generator=generator))

    def forward(self, token_ids_BS: torch.Tensor, position_ids_S: PositionIds) -> torch.Tensor:
        """The class evaluated: h of each sequence, float32 [B]."""
        subsets_NK = subsets_within_reach(position_ids_S, self.sparsity, self.key_reach)
        relations_N = torch.from_numpy(relations_of(position_ids_S, subsets_NK, self.key_reach))
        tokens_BNK = token_ids_BS[:, torch.tensor(subsets_NK)]
        contents_BN = torch.zeros_like(tokens_BNK[..., 0])  # numbers whose digits are the tokens of X_S
        for tokens_BN in tokens_BNK.unbind(dim=-1):
            contents_BN = contents_BN * self.vocabulary_size + tokens_BN
        log_keys_BN = self.log_keys[relations_N * len(self.raw_values) + contents_BN]
        return (log_keys_BN.softmax(dim=1) * self.values()[contents_BN]).sum(dim=1)

    def values(self) -> torch.Tensor:
        """g_val of every X_S: float32."""
        return self.raw_values.tanh()


# Fitting and testing it


Sequences = tuple[torch.Tensor, PositionIds, torch.Tensor]
"""token_ids_BS, int64, without the "=" that asks; position IDs; labels_B, float32: 1 for "0", -1 for "1"."""


def draw_sequences(
    condition: Condition,
    lengths: Lengths,
    sparsity: int,
    size: int,
    num_sequences: int,
    generator: np.random.Generator,
) -> Sequences:
    """`num_sequences` of `size` tokens, k of them planted where the condition's law says."""
    places = local_places if condition.position_law == "local" else places_across_halves
    law = partial(places, local_length=lengths.local_length)
    examples = [draw_planted(size, sparsity, generator, position_law=law) for _ in range(num_sequences)]
    tokens_and_answers = np.stack([example.token_ids_S for example in examples])
    labels_B = torch.from_numpy(1.0 - 2.0 * tokens_and_answers[:, -1]).float()
    return torch.from_numpy(tokens_and_answers[:, :size]), condition.position_ids(size), labels_B


def fit(
    condition: Condition, sparsity: int, lengths: Lengths, num_steps: int, num_test_sequences: int, seed: int
) -> Iterator[dict[str, float]]:
    """Fit on lengths L/2 to L; yield the error at every test length after every measured step."""
    attention = SparseFunctionalAttention(
        sparsity, VOCABULARY_SIZE, condition.key_reach(lengths), torch.Generator().manual_seed(seed)
    )
    generator = np.random.default_rng([seed, 0])
    test_generator = np.random.default_rng([seed, 1])
    tests = [
        draw_sequences(condition, lengths, sparsity, size, num_test_sequences, test_generator)
        for size in lengths.of_tests
    ]
    optimizer = torch.optim.Adam(attention.parameters(), lr=LEARNING_RATE)
    measured_steps = {num_steps >> halving for halving in range(NUM_MEASURED_STEPS)}
    for step in range(1, num_steps + 1):
        size = int(generator.choice(lengths.of_training))
        *inputs, labels_B = draw_sequences(condition, lengths, sparsity, size, BATCH_SIZE, generator)
        optimizer.zero_grad()
        (attention(*inputs) - labels_B).square().mean().backward()
        optimizer.step()
        if step in measured_steps:
            yield from ({"training_step": step} | errors(attention, test) for test in tests)


@torch.no_grad()
def errors(attention: SparseFunctionalAttention, test: Sequences) -> dict[str, float]:
    """The mean of (h(X) - y)^2 on the sequences of one test, and how often h(X) has not the label's sign."""
    token_ids_BS, position_ids_S, labels_B = test
    blocks = token_ids_BS.split(50)  # bounds the memory
    outputs_B = torch.cat([attention(block_BS, position_ids_S) for block_BS in blocks])
    return {
        "test_length": len(position_ids_S),
        "squared_error": float((outputs_B - labels_B).double().square().mean()),
        "error_rate": float((outputs_B * labels_B <= 0).double().mean()),
    }


# What the page and the figure show


def by_length(fits: pd.DataFrame) -> pd.DataFrame:
    """After training, a row a model and test length, with medians and ranges over seeds.

    Returns:
        model, sparsity, test_length, length_ratio (to L), num_seeds, then with the range over seeds
        squared_error, error_rate, in_distribution_error (delta: the mean over the lengths of training),
        improved_bound ((L̄ / L)^2 delta) and growth_exponent (p where the squared error grows as L̄^p from L).
    """
    last = fits[fits["training_step"] == fits.groupby("model")["training_step"].transform("max")].copy()
    last["length_ratio"] = last["test_length"] / last["train_context_length"]
    of_fit = [last["model"], last["seed"]]
    trained = last["squared_error"].where(last["length_ratio"] <= 1)
    last["in_distribution_error"] = trained.groupby(of_fit).transform("mean")
    last["improved_bound"] = last["length_ratio"] ** 2 * last["in_distribution_error"]
    at_longest_trained = trained.where(last["length_ratio"] == 1).groupby(of_fit).transform("max")
    growth = np.log(last["squared_error"] / at_longest_trained)
    last["growth_exponent"] = growth / np.log(last["length_ratio"].where(last["length_ratio"] > 1))
    ranged = ["squared_error", "error_rate", "in_distribution_error", "improved_bound", "growth_exponent"]
    rows = []
    for (model, length), group in last.groupby(["model", "test_length"]):
        row: dict[Hashable, Any] = {"model": model, "test_length": length, "num_seeds": len(group)}
        row |= group[["sparsity", "length_ratio"]].iloc[0].to_dict()
        for name in ranged:
            values = group[name]
            row |= interval_columns(name, Interval(values.median(), values.min(), values.max()))
        rows.append(row)
    return pd.DataFrame(rows)


CASES = {
    "local": ("close together", drawing.Style(drawing.BLACK, "o")),
    "halves_coupled": ("far apart\nbut coupled", drawing.POSITION_STYLES["coupled"]),
    "halves_trained_keys": ("far apart\nand uncoupled", drawing.POSITION_STYLES["contiguous"]),
}
"""Where the deciding tokens stand: the two cases of the theorems, and one that they leave out."""


def bounds_figure(table: pd.DataFrame) -> Figure:
    """A column a k: above wrong answers, below the squared error and the bound, against the test length."""
    sparsities = sorted(set(table["sparsity"].astype(int)))
    figure, axes = drawing.panels(len(sparsities), 4.2, num_rows=2)
    axes = axes.reshape(2, -1)
    train = int(table.loc[table["length_ratio"] == 1, "test_length"].iloc[0])
    ticks = sorted({train // 2, *table.loc[table["length_ratio"] >= 1, "test_length"]})
    for column, k in enumerate(sparsities):
        for ax, value in zip(axes[:, column], ("error_rate", "squared_error"), strict=True):
            ends = []
            for case, (words, look) in CASES.items():
                line = table[table["model"] == f"{case}-k{k}"]
                if len(line):
                    style = look.measured | {"markersize": 3}
                    at = line["test_length"]
                    ends.append(drawing.draw_line(ax, at, line, value, style, words, band=True))
            ax.axvspan(table["test_length"].min(), train, color=drawing.GREY, alpha=0.12, linewidth=0)
            ax.set_xscale("log", base=2)
            ax.set_xticks(ticks, [str(tick) for tick in ticks])
        axes[0, column].set(title=f"k = {k}", ylim=(-0.02, 0.62))
        drawing.name_level(axes[0, column], 0.5, "guessing", side="left")
        axes[1, column].set(yscale="log", xlabel="test length (tokens)")
        bound = table[(table["model"] == f"local-k{k}") & (table["length_ratio"] >= 1)]
        axes[1, column].plot(bound["test_length"], bound["improved_bound"], color=drawing.GREY, linestyle=":")
    axes[0, 0].set_ylabel("wrong answers (share)")
    axes[1, 0].set_ylabel("squared error")
    drawing.share_scale(axes[1])
    drawing.label_line_ends(axes[1, -1], ends)
    longest = table[table["length_ratio"] == table["length_ratio"].max()]
    times = f"{longest['length_ratio'].iloc[0]:g} times the training length"
    failing = {model.rpartition("-k")[0] for model in longest.loc[longest["error_rate_high"] > 0.01, "model"]}
    fail_in = [CASES[case][0].replace("\n", " ") for case in CASES if case in failing]
    drawing.put_title(
        figure,
        f"At {times} answers fail if the deciding tokens are {'; '.join(fail_in)}, and else they hold"
        if fail_in
        else f"At {times} answers hold in every case",
        "Sparse functional attention",
        f"n = {drawing.counted_seeds(table)}",
        "lines: medians; bands: range of seeds; grey: trained; the answer 0 has squared error 1",
        "dotted: improved bound, close together (its constant: 1); some lines lie behind others",
    )
    return figure


# The program


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--results", type=folder_path, required=True, help="the results folder to write to")
    add("--figures", type=folder_path, required=True, help="the folder of the figure")
    names = list(CONDITIONS)
    add("--conditions", nargs="+", choices=names, default=names, help="conditions to fit (default: all)")
    add("--sparsity", type=positive_int, nargs="+", default=[2], metavar="K", help="k; cost grows with it")
    add("--train-context-length", type=positive_int, default=32, help="L: training has L/2 to L tokens")
    add("--local-length", type=positive_int, default=8, help="L_local, in tokens, at most L/4")
    add("--seeds", type=int, nargs="+", default=list(range(6)), help="a fit a seed")
    add("--steps", type=positive_int, default=2000, help="training steps")
    add("--num-test-sequences", type=positive_int, default=500, help="test sequences of each length")
    return program


def main(arguments: argparse.Namespace) -> None:
    """Fit what is missing, seed by seed, and draw the figure."""
    train = arguments.train_context_length
    if train % 4 or not max(arguments.sparsity) <= arguments.local_length <= train // 4:
        raise InputError("L must be a multiple of 4, and the theorems ask for k <= L_local <= L/4")
    lengths = Lengths(train, arguments.local_length)
    fitting = arguments.steps, arguments.num_test_sequences
    settings = {
        **lengths._asdict(),
        "num_steps": arguments.steps,
        "num_test_sequences": arguments.num_test_sequences,
        "batch_size": BATCH_SIZE,
        "learning_rate": LEARNING_RATE,
        "seeds": arguments.seeds,
    }
    for k, name in product(arguments.sparsity, arguments.conditions):
        condition = CONDITIONS[name]
        model = f"{name}-k{k}"
        num_fits = len(arguments.seeds)
        output = StageOutput(
            arguments.results, STAGE, model, settings=settings, inputs={}, num_shards=num_fits
        )
        of_all_rows = {
            "sparsity": k,
            "position_law": condition.position_law,
            "position_scheme": condition.position_scheme,
            "key_reach": condition.key_reach(lengths),
            "local_length": lengths.local_length,
            "train_context_length": train,
            "num_sequences": arguments.num_test_sequences,
        }
        with nullcontext() if output.is_done() else output.writing():
            for shard in progress(output.pending_shards(), f"{name}, k = {k}", "fits"):
                seed = arguments.seeds[shard]
                fitted = fit(condition, k, lengths, *fitting, seed)
                rows = [of_all_rows | {"seed": seed} | row for row in fitted]
                output.write_shard(shard, {STAGE: {name: [row[name] for row in rows] for name in rows[0]}})
    table = by_length(read_artefact(arguments.results, STAGE))
    drawing.save(bounds_figure(table), arguments.figures, STAGE)


if __name__ == "__main__":
    run_stage(parser(), main)
