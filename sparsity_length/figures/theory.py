"""Fit sparse functional attention (Definition 3.3) on planted correlations, and measure its error at length.

    h(X) = Σ_S g_key(S, X_S) g_val(X_S) / Σ_S g_key(S, X_S)      over the k-subsets S of the positions

X_S are the tokens at S in the order of their positions; with k = 1 this is a bag of words. From the paper we
take this form, relativity (Assumption 3.2: shifting S does not change its key), and the objective of Theorem
4.3, the mean loss over lengths from L/2 to L. Theorem 4.3 is about the condition `local`, Theorem 4.4 about
`halves_coupled`; `halves_trained_keys` drops their assumption that position IDs are near. Our own choices:

- The key is exp of a free number for every (relation of S, X_S), and 0 if position IDs differ by `key_reach`
  or more. A relation is the differences of the IDs from the first one: for k = 2 and reach 3, -2 … 2.
- No training sequence shows the keys of longer relations, and nothing keeps these keys small. So keys reach
  L_local in the theorems' conditions, and elsewhere as far as training sequences do.
- Labels are -1 and 1, and values are free numbers between them. The loss is the squared error (predicting 0
  costs 1), minimized by Adam on fresh sequences, each step at one length drawn uniformly.
- `local_4` and `local_16` have another L_local. A step of `local_mean` and `local_minimax` uses all lengths,
  and the mean or the largest of their losses. Theorem 4.3 has a smaller bound for a minimax objective, with
  larger chunks and a distribution of S* that our sources do not give; here only the objective differs.

An interval is the range over seeds. The program writes results (columns: pipeline/RESULTS.md) and, if all
three main conditions are fitted, the figure sparse_functional_attention. Run the same command again to
resume; complete fits are kept.

The three main conditions with six seeds (takes a few minutes on one core), and a version that takes seconds:
  python -m sparsity_length.figures.theory --results runs/theory/results --figures runs/theory/figures
  python -m sparsity_length.figures.theory --results runs/demo/theory --figures runs/demo/figures \\
      --seeds 0 1 2 --steps 200 --num-test-sequences 100

Dimension letters: B sequences, S positions, N subsets within reach, K = k positions of a subset.
"""

import argparse
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from sparsity_length.cli import InputError, Stage, folder_path, positive_int, progress, random_seed
from sparsity_length.figures import drawing
from sparsity_length.figures.read import rows_where
from sparsity_length.results.read import Results
from sparsity_length.results.write import StageOutput
from sparsity_length.synthetic.tasks import PLANTED_VOCABULARY, draw_planted, local_places, uniform_places

NAME = "sparse_functional_attention"
VOCABULARY_SIZE = len(PLANTED_VOCABULARY) - 1
"""Signals and noise; the "=" that asks is left out."""
BATCH_SIZE = 32
LEARNING_RATE = 0.1
# tokens
TRAIN_CONTEXT_LENGTH = 32
"""L: training sequences have L/2 to L tokens, an even number, so that they have halves."""
LOCAL_LENGTH = 8
"""L_local: the theorems ask for k <= L_local <= L/4."""
TRAINED_LENGTHS = range(TRAIN_CONTEXT_LENGTH // 2, TRAIN_CONTEXT_LENGTH + 1, 2)
TEST_LENGTHS = (*TRAINED_LENGTHS, *(times * TRAIN_CONTEXT_LENGTH for times in (2, 4, 8)))
PositionIds = tuple[int, ...]


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


class Condition(NamedTuple):
    """The place of S* ("local" or "halves"), the scheme of position IDs, the reach of keys in these IDs."""

    position_law: str
    position_scheme: str
    key_reach: int
    local_length: int = LOCAL_LENGTH
    objective: str = "one_length"
    """The loss of a step: of one length drawn uniformly, or over all lengths the "mean" or "minimax"."""

    def position_ids(self, size: int) -> PositionIds:
        """IDs of a sequence of this size; coupled, both halves count from 0: for 6 tokens 0 1 2 0 1 2."""
        return 2 * tuple(range(size // 2)) if self.position_scheme == "coupled" else tuple(range(size))


CONDITIONS = {
    "local": Condition("local", "contiguous", LOCAL_LENGTH),
    "halves_coupled": Condition("halves", "coupled", LOCAL_LENGTH),
    "halves_trained_keys": Condition("halves", "contiguous", TRAIN_CONTEXT_LENGTH),
    "local_4": Condition("local", "contiguous", 4, 4),
    "local_16": Condition("local", "contiguous", 16, 16),
    "local_mean": Condition("local", "contiguous", LOCAL_LENGTH, objective="mean"),
    "local_minimax": Condition("local", "contiguous", LOCAL_LENGTH, objective="minimax"),
}


@lru_cache(maxsize=64)
def subsets_within_reach(
    position_ids_S: PositionIds, sparsity: int, key_reach: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every set of k positions whose IDs lie within reach, ascending, and the number of its relation.

    Grown position by position, so that the cost follows the number of subsets within reach.
    """
    ids_S = np.array(position_ids_S)
    places_S = np.arange(len(ids_S))
    subsets_NK = places_S[:, None]
    for _ in range(sparsity - 1):
        distances_NKS = np.abs(ids_S[subsets_NK][:, :, None] - ids_S)
        # Only later places are added, so each subset arises once, ascending.
        is_next_NS = (distances_NKS < key_reach).all(axis=1) & (places_S > subsets_NK[:, -1:])
        chosen_N, added_N = np.nonzero(is_next_NS)
        subsets_NK = np.column_stack([subsets_NK[chosen_N], added_N])
    ids_NK = ids_S[subsets_NK]
    # Differences from the first ID, which may be negative if IDs are coupled, as digits in base 2 reach - 1.
    # Reach 3: -2 … 2 become 0 … 4.
    digits_NK = ids_NK[:, 1:] - ids_NK[:, :1] + key_reach - 1
    powers_K = (2 * key_reach - 1) ** np.arange(sparsity - 1)[::-1]
    return torch.from_numpy(subsets_NK), torch.from_numpy(digits_NK @ powers_K)


class SparseFunctionalAttention(nn.Module):
    """h, with its keys and values as tables to be learned."""

    def __init__(
        self, sparsity: int, vocabulary_size: int, key_reach: int, generator: torch.Generator
    ) -> None:
        """All keys 1, all values near 0; without the noise of `generator` none would be told from another."""
        super().__init__()
        self.sparsity = sparsity
        self.key_reach = key_reach
        num_relations = (2 * key_reach - 1) ** (sparsity - 1)
        self.powers_K = vocabulary_size ** torch.arange(sparsity - 1, -1, -1)
        self.log_keys = nn.Parameter(torch.zeros(num_relations * vocabulary_size**sparsity))
        self.raw_values = nn.Parameter(0.1 * torch.randn(vocabulary_size**sparsity, generator=generator))

    def forward(self, token_ids_BS: torch.Tensor, position_ids_S: PositionIds) -> torch.Tensor:
        """The class evaluated: h of each sequence, float32 [B]."""
        subsets_NK, relations_N = subsets_within_reach(position_ids_S, self.sparsity, self.key_reach)
        contents_BN = (token_ids_BS[:, subsets_NK] * self.powers_K).sum(dim=-1)  # its digits are X_S
        # The table [relation, X_S] is flattened: a row has as many entries as there are values.
        log_keys_BN = self.log_keys[relations_N * len(self.raw_values) + contents_BN]
        # Keys are exp of a free number, so keys over their sum are a softmax, which can't overflow.
        return (log_keys_BN.softmax(dim=1) * self.raw_values.tanh()[contents_BN]).sum(dim=1)


Sequences = tuple[torch.Tensor, PositionIds, torch.Tensor]
"""token_ids_BS, int64, without the "=" that asks; position IDs; labels_B, float32: 1 for "0", -1 for "1"."""


def draw_sequences(
    condition: Condition, sparsity: int, size: int, num_sequences: int, generator: np.random.Generator
) -> Sequences:
    """`num_sequences` of `size` tokens, k of them planted where the condition's law says."""
    places = local_places if condition.position_law == "local" else places_across_halves
    law = partial(places, local_length=condition.local_length)
    examples = [draw_planted(size, sparsity, generator, position_law=law) for _ in range(num_sequences)]
    tokens_and_answers = np.stack([example.token_ids_S for example in examples])
    # The answer, the last token, is 0 or 1; before it stands "=", which is left out.
    labels_B = torch.from_numpy(1.0 - 2.0 * tokens_and_answers[:, -1]).float()
    return torch.from_numpy(tokens_and_answers[:, :size]), condition.position_ids(size), labels_B


def fit(
    condition: Condition, sparsity: int, num_steps: int, num_test_sequences: int, seed: int
) -> list[dict[str, float]]:
    """Fit on lengths L/2 to L: the error at every test length."""
    attention = SparseFunctionalAttention(
        sparsity, VOCABULARY_SIZE, condition.key_reach, torch.Generator().manual_seed(seed)
    )
    generator = np.random.default_rng([seed, 0])
    optimizer = torch.optim.Adam(attention.parameters(), lr=LEARNING_RATE)
    for _ in range(num_steps):
        losses = []
        is_one = condition.objective == "one_length"
        for size in [int(generator.choice(TRAINED_LENGTHS))] if is_one else TRAINED_LENGTHS:
            *inputs, labels_B = draw_sequences(condition, sparsity, size, BATCH_SIZE, generator)
            losses.append((attention(*inputs) - labels_B).square().mean())
        optimizer.zero_grad()
        (max(losses) if condition.objective == "minimax" else torch.stack(losses).mean()).backward()
        optimizer.step()
    # A stream of its own: tests are the same whatever the number of training steps.
    test_generator = np.random.default_rng([seed, 1])
    return [
        errors(attention, draw_sequences(condition, sparsity, size, num_test_sequences, test_generator))
        for size in TEST_LENGTHS
    ]


@torch.no_grad()
def errors(attention: SparseFunctionalAttention, test: Sequences) -> dict[str, float]:
    """The mean of (h(X) - y)^2 on the sequences of one test, and how often h(X) has not the label's sign."""
    token_ids_BS, position_ids_S, labels_B = test
    # Blocks bound the memory.
    outputs_B = torch.cat([attention(block_BS, position_ids_S) for block_BS in token_ids_BS.split(50)])
    return {
        "test_length": len(position_ids_S),
        "squared_error": float((outputs_B - labels_B).double().square().mean()),
        "error_rate": float((outputs_B * labels_B <= 0).double().mean()),
    }


def by_length(fits: pd.DataFrame) -> pd.DataFrame:
    """After training, one row per model and test length, with medians and ranges over seeds.

    Returns:
        model, test_length, sparsity, length_ratio (to L), num_seeds, then with the range over seeds
        squared_error, error_rate, in_distribution_error (the mean over the lengths of training) and
        growth_exponent (p if the squared error grows as length^p from L).
    """
    last = fits[fits["training_step"] == fits.groupby("model")["training_step"].transform("max")].copy()
    last["length_ratio"] = last["test_length"] / last["train_context_length"]
    of_fit = [last["model"], last["seed"]]
    trained = last["squared_error"].where(last["length_ratio"] <= 1)
    last["in_distribution_error"] = trained.groupby(of_fit).transform("mean")
    # One value per fit, the error at L, and NaN elsewhere, which `max` skips.
    at_longest_trained = trained.where(last["length_ratio"] == 1).groupby(of_fit).transform("max")
    growth = np.log(last["squared_error"] / at_longest_trained)
    last["growth_exponent"] = growth / np.log(last["length_ratio"].where(last["length_ratio"] > 1))
    ranged = ["squared_error", "error_rate", "in_distribution_error", "growth_exponent"]
    cells = last.groupby(["model", "test_length"])
    table = cells.agg(
        sparsity=("sparsity", "first"), length_ratio=("length_ratio", "first"), num_seeds=("seed", "size")
    )
    for end, of_seeds in (("", "median"), ("_low", "min"), ("_high", "max")):
        table = table.join(cells[ranged].agg(of_seeds).add_suffix(end))
    return table.reset_index()


CASES = {
    "local": ("close together", drawing.solid(drawing.BLACK)),
    "halves_coupled": ("far apart\nbut coupled", drawing.POSITION_STYLES["coupled"]),
    "halves_trained_keys": ("far apart\nand uncoupled", drawing.POSITION_STYLES["contiguous"]),
}
"""Places of the deciding tokens: the two cases of the theorems, and one that they leave out."""


def _draw_cases(
    ax: Axes,
    table: pd.DataFrame,
    value: str,
    k: int,
    cases: Mapping[str, tuple[str, drawing.Style]],
    scale: float = 1,
) -> None:
    """A line per case at one k, with its range over seeds, against the test length."""
    for case, (words, style) in cases.items():
        line = rows_where(table, model=f"{case}-k{k}")
        drawing.draw_line(ax, line["test_length"], line, value, style, words, band=True, scale=scale)
    drawing.shade(ax, TRAINED_LENGTHS[0], TRAIN_CONTEXT_LENGTH)
    # n & (n - 1) is 0 for powers of two, which have a single bit.
    lengths = [length for length in TEST_LENGTHS if not length & length - 1]
    drawing.length_axis(ax, lengths, "test length (tokens)")


def errors_figure(table: pd.DataFrame) -> Figure:
    """Percent of wrong predictions against the test length: one panel per k, one line per case."""
    sparsities = sorted(set(table["sparsity"].astype(int)))
    figure, axes = drawing.panels(len(sparsities), 2.5)
    for ax, k in zip(axes, sparsities, strict=True):
        named = {case: (words if ax is axes[-1] else "", style) for case, (words, style) in CASES.items()}
        _draw_cases(ax, table, "error_rate", k, named, scale=100)
        ax.set_title(f"k = {k}")
        drawing.name_level(ax, 50, "chance", side="left")
    axes[0].set(ylabel="wrong predictions (%)", ylim=(-3, 62))
    longest = rows_where(table, test_length=TEST_LENGTHS[-1])
    longest = longest.assign(case=longest["model"].str.rpartition("-k")[0])
    failing = longest[(longest["error_rate_high"] > 0.01) & longest["case"].isin(list(CASES))]
    fail_in = " or ".join(CASES[case][0].replace("\n", " ") for case in CASES if case in set(failing["case"]))
    drawing.put_title(
        figure,
        f"At 8 times the training length, predictions fail from k = {failing['sparsity'].min():.0f} on if the"
        f" deciding tokens are {fail_in}"
        if fail_in
        else "At 8 times the training length, no predictions fail",
        "sparse functional attention",
        "keys reach L_local; if uncoupled, L",
        f"n = {drawing.counted_seeds(table)}",
        "lines: medians; bands: range of seeds; shaded: trained lengths",
    )
    return figure


VARIED = {
    "L_local varied": {
        "local_4": ("4", drawing.OTHER_MODELS[2]),
        "local": ("8", drawing.solid(drawing.BLACK)),
        "local_16": ("16,\nover L/4", drawing.OTHER_MODELS[3]),
    },
    "objective varied, over lengths": {
        "local": ("one\ndrawn", drawing.solid(drawing.BLACK)),
        "local_mean": ("mean", drawing.OTHER_MODELS[2]),
        "local_minimax": ("minimax", drawing.OTHER_MODELS[3]),
    },
}
"""Panel -> cases with local S*, k = 2, and what differs."""


def squared_errors_figure(table: pd.DataFrame) -> Figure:
    """The squared error against the test length with another L_local, and with other objectives."""
    figure, axes = drawing.panels(len(VARIED), 2.6)
    for ax, (title, cases) in zip(axes, VARIED.items(), strict=True):
        _draw_cases(ax, table, "squared_error", 2, cases)
        ax.set_title(title)
    axes[0].set(ylabel="squared error", yscale="log")
    axes[0].yaxis.set_major_formatter("{x:g}")
    shown = table[table["model"].isin([f"{case}-k2" for cases in VARIED.values() for case in cases])]
    drawing.put_title(
        figure,
        "The error grows about as the square of the length",
        "sparse functional attention, local S*",
        "k = 2",
        f"n = {drawing.counted_seeds(shown)}",
        "lines: medians; bands: range of seeds; shaded: trained lengths",
    )
    return figure


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The program's command line."""
    add = parser.add_argument
    add("--results", type=folder_path, required=True, help="results folder to write to")
    add("--figures", type=folder_path, required=True, help="folder to write the figure to")
    add(
        "--sparsity",
        type=positive_int,
        nargs="+",
        default=[2],
        metavar="K",
        help="values of k; cost grows with k",
    )
    add(
        "--conditions",
        nargs="+",
        choices=CONDITIONS,
        default=list(CASES),
        metavar="CONDITION",
        help=f"where the k tokens are, from: {', '.join(CONDITIONS)}",
    )
    add("--seeds", type=random_seed, nargs="+", default=list(range(6)), help="random seeds, one fit each")
    add("--steps", type=positive_int, default=2000, help="number of training steps")
    add(
        "--num-test-sequences", type=positive_int, default=500, help="number of test sequences of each length"
    )


def main(arguments: argparse.Namespace) -> None:
    """Fit what is missing, seed by seed, and draw the figure."""
    local_length = min(CONDITIONS[name].local_length for name in arguments.conditions)
    if max(arguments.sparsity) > local_length:
        raise InputError(f"--sparsity: the theorems ask for k <= L_local, which is {local_length}")
    settings = {
        "train_context_length": TRAIN_CONTEXT_LENGTH,
        "num_steps": arguments.steps,
        "num_test_sequences": arguments.num_test_sequences,
        "batch_size": BATCH_SIZE,
        "learning_rate": LEARNING_RATE,
        "seeds": arguments.seeds,
    }
    for k, name in product(arguments.sparsity, arguments.conditions):
        condition = CONDITIONS[name]
        output = StageOutput(
            arguments.results,
            NAME,
            f"{name}-k{k}",
            settings=settings,
            inputs={},
            # A shard per seed: a command that is repeated fits only what is missing.
            num_shards=len(arguments.seeds),
        )
        shared = condition._asdict() | {
            "sparsity": k,
            "train_context_length": TRAIN_CONTEXT_LENGTH,
            "num_sequences": arguments.num_test_sequences,
            "training_step": arguments.steps,
        }
        with output.writing():
            for shard in progress(output.pending_shards(), f"{name}, k = {k}", "fits"):
                seed = arguments.seeds[shard]
                fitted = fit(condition, k, arguments.steps, arguments.num_test_sequences, seed)
                rows = [shared | {"seed": seed} | row for row in fitted]
                output.write_shard(shard, [(NAME, {name: [row[name] for row in rows] for name in rows[0]})])
    if set(CASES) <= set(arguments.conditions):
        table = by_length(Results(arguments.results).frame(NAME))
        drawing.save(errors_figure(table), arguments.figures, NAME)


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
