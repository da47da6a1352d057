"""An explanation as the explorer's page. Shapes: T targets."""

from typing import Any

import numpy as np

from pipeline.explaining.explanation import Explanation
from pipeline.explaining.measuring import Chosen, OfRule
from pipeline.explorer_page.writing import NATS, Record, in_units, page_of, to_json


def explorer_page(explanation: Explanation, name: str) -> str:
    """The page's HTML.

    Args:
        name: of the text, as it is shown.
    """
    asked, part = explanation.asked, explanation.part
    record = _record(explanation, name)
    header: dict[str, Any] = {
        "results": f"{name}, by {explanation.model_name} in {explanation.dtype}",
        "models": [explanation.model_name], "rules": list(explanation.measurements.of_rule),
        "k": list(part.ks), "intervention": "remove",
        "short_context_length": part.lengths.short_context_length,
        "long_context_length": part.lengths.long_context_length,
        "targets_per_chunk": part.lengths.targets_per_chunk,
        "recovery_fraction": asked.recovery_fraction, "minimum_gain": asked.minimum_gain,
        "unit_nats": NATS, "left_out": _left_out(explanation),
        "null_pieces": _null_pieces(explanation),
    }  # fmt: skip
    return page_of(header, [(record, to_json(record))])


def _record(explanation: Explanation, name: str) -> Record:
    part, measured = explanation.part, explanation.measurements
    of_model = {
        "short": in_units(measured.short.losses.tolist()),
        "long": in_units(measured.long_losses_T.tolist()),
        "expected": in_units(measured.short.divergences.tolist()),
        "specific": in_units(explanation.specific_gains_T.tolist()),
        "rules": {rule: _of_rule(explanation, of) for rule, of in measured.of_rule.items()},
    }
    chunk = {
        "start": part.first_token, "pieces": explanation.pieces_L, "targets": part.lengths.targets_T.tolist(),
        "models": {explanation.model_name: of_model},
        "null": {"id": "the foreign text", "pieces": explanation.foreign_pieces_L},
    }  # fmt: skip
    return {"id": name, "num_tokens": len(explanation.text.token_ids_N), "chunks": [chunk]}


def _of_rule(explanation: Explanation, of_rule: OfRule) -> Record:
    by_criterion = {"loss": (of_rule.k_star_T, of_rule.is_censored_T), "divergence": of_rule.expected}
    k_star = {
        criterion: ["censored" if is_censored else k for k, is_censored in zip(*values, strict=True)]
        for criterion, values in by_criterion.items()
    }
    record: Record = {"k_star": k_star, "own": _chosen(explanation, of_rule.own)}
    if of_rule.null is not None:
        tokens_TK = explanation.foreign.token_ids_N[of_rule.null.positions_TK]
        record["other_document"] = _chosen(explanation, of_rule.null) | {"token": tokens_TK.tolist()}
    return record


def _chosen(explanation: Explanation, chosen: Chosen) -> Record:
    distances_TK = explanation.part.lengths.targets_T[:, None] - chosen.positions_TK
    nothing_TK = np.full(distances_TK.shape, np.nan)
    influence_TK = nothing_TK if chosen.influence_TK is None else chosen.influence_TK
    record: Record = {
        "loss": _rows(chosen.sparse_TJ.losses),
        "kl": _rows(chosen.sparse_TJ.divergences),
        "distance": distances_TK.tolist(),
        "influence": _rows(influence_TK),
    }
    if chosen.divergence_TK is not None:
        record["moved"] = _rows(chosen.divergence_TK)
    return record


def _rows(values_TK: np.ndarray) -> list[list[int | None]]:
    return [in_units(values_K) for values_K in values_TK.tolist()]


def _null_pieces(explanation: Explanation) -> dict[int, str]:
    """The text of every foreign token that a null chose, by its ID."""
    nulls = [of.null for of in explanation.measurements.of_rule.values() if of.null is not None]
    places = {place for null in nulls for place in null.positions_TK.ravel().tolist()}
    pieces = explanation.foreign_pieces_L
    return {int(explanation.foreign.token_ids_N[place]): pieces[place] for place in sorted(places)}


def _left_out(explanation: Explanation) -> list[str]:
    part, lengths = explanation.part, explanation.part.lengths
    left_out = []
    if part.first_token:
        left_out.append(f"The first {part.first_token:,} tokens of the text, which are not measured.")
    left_out.append(
        f"Predictions of the first {lengths.first_target:,} tokens shown: before their short context are"
        f" fewer than {part.ks[-1]} tokens, or they were not asked for (--targets)."
    )
    left_out.append("The influence of far tokens that no rule selected.")
    if any(of.null is None for of in explanation.measurements.of_rule.values()):
        left_out.append(
            "The null of rules that fit neither the answer nor the prediction: they are told by what they"
            " recover themselves."
        )
    return left_out
