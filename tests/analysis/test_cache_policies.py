"""What policies of a cache keep: shares and recall by hand, and the program on what a tiny model chose."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from legible_figures import assert_legible
from measured_documents import measure, write_checkpoint, write_data
from olmo.model import OLMo

from analysis import cache_policies as program
from analysis.cache_policies import REFERENCE, leaderboard, policies_figure
from pipeline import influential_tokens
from pipeline.cli import InputError
from pipeline.results.files import read_parquet

POLICIES = ["streaming_llm", "h2o", "snapkv", "quest"]
# (rule, far context) -> divergence with 1 and 2 tokens of each of two targets, whose D(0) is 1 and 3
LEFT = {
    (REFERENCE, "own"): ([0.5, 1.5], [0.0, 1.0]),
    (REFERENCE, "other_document"): ([2.0, 4.0], [1.0, 3.0]),
    ("h2o", "own"): ([1.0, 3.0], [0.5, 2.5]),
    ("h2o", "other_document"): ([9.0, 9.0], [9.0, 9.0]),
}
POSITIONS = {REFERENCE: ([7, 3], [5, 6]), "h2o": ([3, 7], [6, 1])}
TARGETS = {"document_id": ["a", "b"], "chunk_index": 0, "target_position": [11, 12]}


def tables(long_loss: float) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    losses = [
        pd.DataFrame(TARGETS).assign(
            rule=rule, far_context=far_context, k=k, short_context_loss=4.0, long_context_loss=long_loss,
            sparse_context_loss=4.0 - k / 4, short_context_divergence=[1.0, 3.0],
            sparse_context_divergence=left,
        )
        for (rule, far_context), of_k in LEFT.items()
        for k, left in zip((1, 2), of_k, strict=True)
    ]  # fmt: skip
    chosen = [
        pd.DataFrame(TARGETS).assign(rule=rule, far_context="own", rank=rank + 1,
                                     context_position=[of_target[rank] for of_target in positions])
        for rule, positions in POSITIONS.items()
        for rank in (0, 1)
    ]  # fmt: skip
    sparsity = pd.DataFrame(TARGETS).assign(rule=REFERENCE, half_sparsity=pd.array([1, 2], "Int64"))
    return pd.concat(losses), sparsity, pd.concat(chosen)


def test_shares_and_recall_by_hand() -> None:
    table = leaderboard(*tables(long_loss=2.0)).set_index(["rule", "is_null", "k"])
    assert ("h2o", True, 1) not in table.index
    kept = table["divergence_kept"]
    assert [kept[REFERENCE, False, k] for k in (1, 2)] == pytest.approx([0.5, 0.75])
    assert [kept[REFERENCE, True, k] for k in (1, 2)] == pytest.approx([-0.5, 0])
    assert [kept["h2o", False, k] for k in (1, 2)] == pytest.approx([0, 0.25])
    assert table.loc[("h2o", False, 2), "loss_kept"] == pytest.approx(0.25)  # 0.5 of 2 nats
    # The reference needs token 7 of one target, 5 and 6 of the other: H2O has 6 at once, and 7 next.
    recall = table["recall"]
    assert [recall["h2o", False, k] for k in (1, 2)] == pytest.approx([1 / 3, 2 / 3])
    assert [recall[REFERENCE, False, k] for k in (1, 2)] == pytest.approx([2 / 3, 1])
    assert pd.isna(recall[REFERENCE, True, 1])
    assert table.index[0] == (REFERENCE, False, 1)  # the best first
    without_worth = leaderboard(*tables(long_loss=4.0))
    assert without_worth["loss_kept"].isna().all() and without_worth["divergence_kept"].notna().all()


def test_the_program_on_what_models_chose(
    tmp_path: Path, make_olmo: Callable[..., OLMo], capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(tmp_path / "data")
    own, chose, tried, figures = (tmp_path / name for name in ("own", "chose", "tried", "figures"))

    def table(*results: Path) -> pd.DataFrame:
        words = ["--results", *map(str, results), "--figures", str(figures)]
        program.main(program.parser().parse_args(words))
        return read_parquet(figures / "cache_policies.parquet").to_pandas()

    write_checkpoint(tmp_path / "run", make_olmo(seed=2))
    background = ["--intervention", "background", "--results", str(chose)]
    measure(influential_tokens, tmp_path, *background, "--rules", REFERENCE)
    with pytest.raises(InputError, match="in .*chose other tokens stand in the place of evicted ones"):
        table(chose)
    write_checkpoint(tmp_path / "judge", make_olmo(seed=1))
    judge = ["--checkpoints", str(tmp_path / "judge"), "--results"]
    measure(influential_tokens, tmp_path, *judge, str(own), "--rules", REFERENCE, *POLICIES, "nearest")
    alone = table(own)
    assert len(alone) == 7 * 3 and alone["num_targets"].eq(12).all()  # and the null
    printed = capsys.readouterr().out
    assert all(f"judge  {policy} " in printed for policy in POLICIES)
    costs = dict(zip(alone["rule"], alone["token_forwards_per_target"], strict=True))
    assert costs["quest"] == 11 / 3 and costs["streaming_llm"] == 0
    assert_legible(policies_figure(alone))
    # Another model's choice of the reference takes the place of the own one.
    measure(influential_tokens, tmp_path, *judge, str(tried), "--choices", str(chose), "--rules", REFERENCE)
    crossed = table(tried, chose, own)
    by = ["rule", "is_null", "k"]
    kept = [rows.groupby(by)["divergence_kept"].first() for rows in (alone, crossed)]
    moved = kept[0].ne(kept[1]).groupby("rule").all()
    assert moved.to_dict() == {rule: rule == REFERENCE for rule in moved.index}
    assert crossed[~crossed["is_null"]]["recall"].notna().all()
