"""Where the influential tokens are: how far from the target, and what they have to do with it.

Every selected token has one relation to its target t, the first that fits (x: the tokens that the rule could
choose among; i: the selected position; all compared by vocabulary ID):

    copy after predecessor   x_i = x_t and x_{i-1} = x_{t-1}: what an induction head looks for
    copy                     x_i = x_t, after another token
    after predecessor        x_{i-1} = x_{t-1}: an induction head's place, where another token stands
    predecessor              x_i = x_{t-1}: the token that an induction head's place follows
    beside a copy            x_{i-1} = x_t or x_{i+1} = x_t
    other

Both names and places depend on what is there to be chosen, so each share has two things beside it: the same
share of all far positions of these targets, which is what a choice at random has on average (no draw is
needed), and both again for the null, whose choice is among another document's tokens at the same positions.
"""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.read import TARGET, MeasuredText, joined_on_common, mean_columns, sample_counts
from pipeline.cli import InputError
from pipeline.results.schemas import OTHER_DOCUMENT, OWN
from pipeline.text.chunks import Chunk

INDUCTION = "copy after predecessor"
COPY = "copy"
AFTER_PREDECESSOR = "after predecessor"
PREDECESSOR = "predecessor"
BESIDE_COPY = "beside a copy"
OTHER = "other"
RELATIONS = [INDUCTION, COPY, AFTER_PREDECESSOR, PREDECESSOR, BESIDE_COPY, OTHER]
CHOSEN = "chosen"
AVAILABLE = "available"


def relations(far_token_ids_F: np.ndarray, predecessor_id: int, target_id: int) -> np.ndarray:
    """The relation of every far position to one target: indices into `RELATIONS`, int [F].

    Args:
        far_token_ids_F: tokens of the far context, from the chunk's start.
        predecessor_id: x_{t-1}.
        target_id: x_t.
    """
    before_F = np.concatenate([[-1], far_token_ids_F[:-1]])
    after_F = np.concatenate([far_token_ids_F[1:], [-1]])
    is_copy = far_token_ids_F == target_id
    is_after = before_F == predecessor_id
    fits = [
        is_copy & is_after,
        is_copy,
        is_after,
        far_token_ids_F == predecessor_id,
        (before_F == target_id) | (after_F == target_id),
    ]
    return np.select(fits, range(len(fits)), default=len(fits))


def distance_bins(short_context_length: int, long_context_length: int) -> list[int]:
    """Edges of the distances of far tokens, s + 1 to ℓ, each about twice the one before."""
    edges = [short_context_length + 1]
    while 2 * edges[-1] < long_context_length:
        edges.append(2 * edges[-1])
    return [*edges, long_context_length]


def _far_tokens(chunk: Chunk, place: int, short_context_length: int, far_context: Hashable) -> np.ndarray:
    tokens_L = chunk.token_ids_L if far_context == OWN else chunk.null_token_ids_L
    return tokens_L[: place - short_context_length]


def selections(influential_tokens: pd.DataFrame, text: MeasuredText) -> pd.DataFrame:
    """The artefact with the relation of each selected token.

    Returns:
        model, TARGET, rule, far_context, rank, distance, relation (a name of `RELATIONS`).

    Raises:
        InputError: the tokens in the results are not those of the text, or a chunk has no results.
    """
    tables = []
    of_chunk = dict(list(influential_tokens.groupby(TARGET[:2])))
    for _, chunk in text.chunks():
        rows = of_chunk.pop((chunk.document_id, chunk.chunk_index), None)
        if rows is not None:
            tables.append(_related(rows, chunk, text.short_context_length))
    if of_chunk or not tables:
        raise InputError(
            f"the results name {len(of_chunk)} chunks that the data in {text.data.folder} does not hold"
        )
    return pd.concat(tables, ignore_index=True)


def _related(rows: pd.DataFrame, chunk: Chunk, short_context_length: int) -> pd.DataFrame:
    """`selections` of one chunk."""
    names = np.array(RELATIONS)
    tables = []
    for (position, far_context), of_target in rows.groupby(["target_position", "far_context"]):
        place = int(of_target["target_position"].iloc[0]) - chunk.start
        far_F = _far_tokens(chunk, place, short_context_length, far_context)
        chosen = (of_target["context_position"] - chunk.start).to_numpy()
        if not np.array_equal(far_F[chosen], of_target["context_token_id"]):
            raise InputError(
                f"the tokens selected for position {position} of document {chunk.document_id} are not those"
                " of the data, which must be that which was measured, as it was then"
            )
        related_F = relations(far_F, chunk.token_ids_L[place - 1], chunk.token_ids_L[place])
        tables.append(of_target.assign(relation=names[related_F[chosen]]))
    columns = ["model", *TARGET, "rule", "far_context", "rank", "distance", "relation"]
    return pd.concat(tables)[columns]


def available_places(targets: pd.DataFrame, text: MeasuredText, bins: Sequence[int]) -> pd.DataFrame:
    """What there is to choose among: a row a target and far context, with the part of all far positions.

    Returns:
        TARGET, far_context, then a column a relation and a column a bin (its first distance, int): shares of
        the far positions, which sum to 1 over relations and over bins.
    """
    wanted = {key: set(group["target_position"]) for key, group in targets.groupby(TARGET[:2])}
    rows = []
    for _, chunk in text.chunks():
        for position in sorted(wanted.get((chunk.document_id, chunk.chunk_index), ())):
            place = position - chunk.start
            for far_context in (OWN, OTHER_DOCUMENT):
                far_F = _far_tokens(chunk, place, text.short_context_length, far_context)
                related_F = relations(far_F, chunk.token_ids_L[place - 1], chunk.token_ids_L[place])
                shares = np.bincount(related_F, minlength=len(RELATIONS)) / len(far_F)
                distances, _ = np.histogram(place - np.arange(len(far_F)), _edges(bins))
                key = chunk.document_id, chunk.chunk_index, position, far_context
                rows.append((*key, *shares, *(distances / len(far_F))))
    return pd.DataFrame(rows, columns=[*TARGET, "far_context", *RELATIONS, *bins[:-1]])


def _edges(bins: Sequence[int]) -> list[float]:
    """Between distances: numpy's last bin includes its end."""
    return [edge - 0.5 for edge in bins]


def relation_shares(selected: pd.DataFrame, available: pd.DataFrame, ks: Iterable[int]) -> pd.DataFrame:
    """How the first k tokens relate to their targets, beside what there is to choose among.

    Returns:
        model, rule, k, far_context, relation, num_targets, num_documents, then with intervals chosen and
        available (shares of the k tokens and of all far positions) and chosen_beyond_available.
    """
    return _shares(selected, available, [("k", k, selected["rank"] <= k) for k in ks], "relation", RELATIONS)


def distance_shares(
    selected: pd.DataFrame, available: pd.DataFrame, ks: Iterable[int], bins: Sequence[int]
) -> pd.DataFrame:
    """How far the first k tokens are from their targets: as `relation_shares`, a row a bin `from_distance`.

    `to_distance` is the last distance of the bin. At long distances few targets have far positions, which is
    why the distances available stand beside.
    """
    first = pd.cut(selected["distance"], _edges(bins), labels=list(bins[:-1]))
    binned = selected.assign(from_distance=first.astype("int64"))
    groups = [("k", k, selected["rank"] <= k) for k in ks]
    table = _shares(binned, available, groups, "from_distance", list(bins[:-1]))
    last = dict(zip(bins[:-1], [edge - 1 for edge in bins[1:]], strict=True))
    return table.assign(to_distance=table["from_distance"].map(last))


def _shares(
    selected: pd.DataFrame,
    available: pd.DataFrame,
    groups: Iterable[tuple[str, int, pd.Series]],
    column: str,
    values: Sequence[str] | Sequence[int],
) -> pd.DataFrame:
    """Shares of each value of a column among the chosen, and among what the same targets could choose."""
    keys = [*TARGET, "far_context"]
    what = "targets and their far tokens"
    # For what it says, once: each group below is joined by itself.
    joined_on_common(selected[keys], available[keys], keys, what, may_right_have_more=True)
    rows = []
    for name, number, is_in in groups:
        for (model, rule, far_context), chosen in selected[is_in].groupby(["model", "rule", "far_context"]):
            # A row a target: the share of its tokens with each value. All targets have as many tokens.
            of_target = pd.crosstab([chosen[key] for key in keys], chosen[column], normalize="index")
            of_target = of_target.reindex(columns=list(values), fill_value=0.0).reset_index()
            pairs = of_target.merge(available[[*keys, *values]], on=keys, suffixes=(None, " available"))
            for value in values:
                both = {CHOSEN: pairs[value], AVAILABLE: pairs[f"{value} available"]}
                shares = pairs[TARGET].assign(**both)
                shares["chosen_beyond_available"] = shares[CHOSEN] - shares[AVAILABLE]
                row = {"model": model, "rule": rule, name: number, "far_context": far_context, column: value}
                means = mean_columns(shares, CHOSEN, AVAILABLE, "chosen_beyond_available")
                rows.append(row | sample_counts(shares) | means)
    return pd.DataFrame(rows)
