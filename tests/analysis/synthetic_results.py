"""Results with planted truth, written the way the stages write theirs.

Each target draws how many distant tokens it truly needs (k*), and how much the long context gains it; the
gain is recovered linearly in log2(k) up to k*. Choosing with the answer in hand adds a selection bonus
to `leave_one_out`, the same under the null. The generalization gap grows with k*.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from sparsity_length.results.schemas import DIVERGENCE, LOSS
from sparsity_length.results.write import StageOutput

KS = [1, 2, 4, 8, 16]
SHORT_CONTEXT_LENGTH = 16
LONG_CONTEXT_LENGTH = 256
SHORT_MODELS = ["short-contiguous", "short-pose"]
LONG_MODELS = ["long-seed0", "long-seed1"]
TRAIN_CONTEXT_LENGTHS = {"short-contiguous": 32, "short-pose": 32, "long-seed0": 256, "long-seed1": 256}
RULES = ["leave_one_out", "recency", "random"]
SELECTION_BONUS = {"leave_one_out": 0.08, "recency": 0.01, "random": 0.0}
# How far along its path to L_long a rule gets, as a part of what the planted truth allows.
RULE_STRENGTH = {"leave_one_out": 1.0, "recency": 0.4, "random": 0.1}
CENSORED_K = 32
NO_GAIN_K = 0
MEAN_GAP = {"short-contiguous": 0.05, "short-pose": 0.02}  # nats, a doubling of k* + 1
TARGETS_PER_DOCUMENT = 16
EVALUATOR = "another-model"
FURTHER_KS = [32, 64, 128]
ABSURD_LOSS = 50.0
"""Of the rows that are not to be read as the model's own."""


@dataclass(frozen=True)
class Truth:
    """What was planted, one row per target: needed_k, gain (nats) and the target's keys."""

    targets: pd.DataFrame

    def recovered_gain(self, rule: str, k: int) -> pd.Series:
        """Nats of each target's gain that k tokens truly carry under a rule."""
        return RULE_STRENGTH[rule] * self.targets["gain"] * share(self.targets["needed_k"].to_numpy(), k)


def share(needed_k: np.ndarray, k: int) -> np.ndarray:
    """Part of the gain that the k best tokens carry: all from k = needed_k on."""
    return np.minimum(1.0, np.log2(k + 1) / np.log2(np.maximum(needed_k, 1) + 1))


def plant(num_documents: int, seed: int) -> Truth:
    """Draw the truth of every target."""
    generator = np.random.default_rng(seed)
    num_targets = num_documents * TARGETS_PER_DOCUMENT
    document = np.repeat(np.arange(num_documents), TARGETS_PER_DOCUMENT)
    shares = [0.2, 0.15, 0.15, 0.1, 0.1, 0.1, 0.2]
    needed_k = generator.choice([*KS, CENSORED_K, NO_GAIN_K], num_targets, p=shares)
    document_effect = generator.gamma(4.0, 0.25, num_documents)[document]
    gain = np.where(needed_k == NO_GAIN_K, 0.0, 0.1 + generator.gamma(1.5, 0.3, num_targets))
    targets = pd.DataFrame(
        {
            "document_id": [f"{index:016x}" for index in document],
            "chunk_index": 0,
            "target_position": np.tile(np.arange(240, 240 + TARGETS_PER_DOCUMENT), num_documents),
            "needed_k": needed_k,
            "gain": gain * document_effect,
            "long_context_loss": 2.0 + generator.gamma(2.0, 1.0, num_targets) * document_effect,
        }
    )
    return Truth(targets)


def write_results(
    results: Path,
    num_documents: int = 24,
    seed: int = 0,
    models: list[str] | None = None,
    scale: tuple[int, int] | None = None,
) -> Truth:
    """Write all stages' artefacts in two shards; short-pose has no influential tokens.

    `scale`: parameters and training step that the files tell of every model; nothing where None.
    """
    truth = plant(num_documents, seed)
    for index, model in enumerate(models or [*SHORT_MODELS, *LONG_MODELS]):
        generator = np.random.default_rng([seed, index])
        losses = _losses(truth, model, generator)
        settings = {
            "short_context_length": SHORT_CONTEXT_LENGTH,
            "long_context_length": LONG_CONTEXT_LENGTH,
            "recovery_fraction": 0.9,
            "minimum_gain": 0.1,
            "k": KS,
        }
        inputs = {"checkpoint": f"{index:064x}"}
        outputs = {
            stage: StageOutput(results, stage, model, settings=settings, inputs=inputs, num_shards=2)
            for stage in ("loss_differences", "influential_tokens", "length_losses")
            if (stage, model) != ("influential_tokens", "short-pose")
        }
        facts = None if scale is None else _facts(model, *scale)
        for shard_index, shard in enumerate(np.array_split(losses.index.to_numpy(), 2)):
            rows = losses.loc[shard]
            differences = [("loss_differences", _loss_differences(rows))]
            outputs["loss_differences"].write_shard(shard_index, differences, facts)
            of_lengths = [("length_losses", _length_losses(rows, model, generator))]
            outputs["length_losses"].write_shard(shard_index, of_lengths)
            if "influential_tokens" in outputs:
                tables = [
                    ("sparse_context_losses", _sparse_context_losses(rows, model, generator)),
                    ("dependency_sparsity", _dependency_sparsity(rows, model)),
                ]
                outputs["influential_tokens"].write_shard(shard_index, tables)
    return truth


def _facts(model: str, num_parameters: int, train_step: int) -> dict[str, object]:
    return {
        "num_parameters": num_parameters,
        "train_step": train_step,
        "train_context_length": TRAIN_CONTEXT_LENGTHS[model],
        "seed": int(model == "long-seed1"),
        "position_scheme": "pose" if model == "short-pose" else "contiguous",
    }


def _losses(truth: Truth, model: str, generator: np.random.Generator) -> pd.DataFrame:
    """The truth as one model measures it: long-context models gain, short-context ones do not."""
    losses = truth.targets.copy()
    noise = generator.normal(0, 0.02, len(losses))
    gap = MEAN_GAP.get(model, 0.0) * np.log2(losses["needed_k"] + 1)
    losses["long_context_loss"] = losses["long_context_loss"] + gap + noise
    if model in SHORT_MODELS:
        losses["gain"] = generator.normal(0, 0.3, len(losses))
    losses["short_context_loss"] = losses["long_context_loss"] + losses["gain"]
    return losses


def _loss_differences(rows: pd.DataFrame) -> dict[str, list]:
    places = rows["target_position"]
    of_target = rows.drop(columns=["needed_k", "gain"]).assign(
        target_token_id=places % 7, num_long_context_tokens=places, loss_difference=rows["gain"]
    )
    return of_target.to_dict("list")


def _sparse_context_losses(rows: pd.DataFrame, model: str, generator: np.random.Generator) -> dict[str, list]:
    """And what is not the model's own, absurd: another evaluator's losses, and controls at further k."""
    names = ("document_id", "chunk_index", "target_position", "short_context_loss", "long_context_loss")
    of_targets: dict[str, list] = {name: rows[name].tolist() for name in names}
    of_choices = ("rule", "distant_context", "evaluator", "k")
    table: dict[str, list] = {name: [] for name in (*names, *of_choices, "sparse_context_loss")}
    absurd = [ABSURD_LOSS] * len(rows)

    def add(choice: tuple[str, str, str, int], losses: list[float]) -> None:
        for name in names:
            table[name] += of_targets[name]
        for name, value in zip(of_choices, choice, strict=True):
            table[name] += [value] * len(rows)
        table["sparse_context_loss"] += losses

    for rule in RULES:
        for distant_context in ("own", "other_document"):
            for k in KS:
                recovered = SELECTION_BONUS[rule] * np.log2(k + 1) + generator.normal(0, 0.02, len(rows))
                if distant_context == "own":
                    recovered += RULE_STRENGTH[rule] * rows["gain"] * share(rows["needed_k"].to_numpy(), k)
                add((rule, distant_context, model, k), (rows["short_context_loss"] - recovered).tolist())
                add((rule, distant_context, EVALUATOR, k), absurd)
            if rule != "leave_one_out":
                for evaluator in (model, EVALUATOR):
                    for k in FURTHER_KS:
                        add((rule, distant_context, evaluator, k), absurd)
    return table


def _dependency_sparsity(rows: pd.DataFrame, model: str) -> dict[str, list]:
    """k* as planted by the loss; by the divergence, and for another evaluator, one token for every target."""
    planted = rows[["document_id", "chunk_index", "target_position"]].assign(
        rule="leave_one_out",
        loss_difference=rows["gain"],
        gain=rows["gain"],
        is_censored=rows["needed_k"] == CENSORED_K,
        k_90=rows["needed_k"].where(rows["needed_k"].isin(KS)).astype("Int64"),
    )
    of_others = planted.assign(k_90=1, is_censored=False)
    columns = pd.concat(
        [
            planted.assign(evaluator=model, criterion=LOSS),
            of_others.assign(evaluator=model, criterion=DIVERGENCE),
            *(of_others.assign(evaluator=EVALUATOR, criterion=criterion) for criterion in (LOSS, DIVERGENCE)),
        ]
    ).to_dict("list")
    k_star = [None if pd.isna(value) else value for value in columns["k_90"]]
    return columns | {"k_90": k_star}


def _length_losses(rows: pd.DataFrame, model: str, generator: np.random.Generator) -> dict[str, list]:
    """Loss falls with the context up to the training length, and rises beyond it where training was short."""
    table = []
    for document_id, targets in rows.groupby("document_id"):
        for length in (16, 32, 64, 128, 256):
            doublings_beyond = max(0.0, np.log2(length / TRAIN_CONTEXT_LENGTHS[model]))
            loss = targets["long_context_loss"].mean() + 2 / np.sqrt(length)
            loss += {"short-contiguous": 0.2, "short-pose": 0.03}.get(model, 0.0) * doublings_beyond
            loss += generator.normal(0, 0.02)
            table.append((document_id, 0, length, len(targets), loss))
    names = ("document_id", "chunk_index", "context_length", "num_targets", "mean_loss")
    return pd.DataFrame(table, columns=names).to_dict("list")
