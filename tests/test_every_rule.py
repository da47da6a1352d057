"""The stage influential_tokens with rules and ablations other than the default."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from measured_documents import (
    LONG,
    SHORT,
    VOCABULARY_SIZE,
    measure,
    write_checkpoint,
    write_data,
)
from olmo.model import OLMo
from sparsity_length.programs import influential_tokens

from sparsity_length.cli import InputError
from sparsity_length.measuring.rules import RULES
from sparsity_length.results.read import Results

TARGET = ["document_id", "chunk_index", "target_position"]
TRAIN_TOKENS = np.random.default_rng(7).integers(1, VOCABULARY_SIZE, 200).tolist()

EVERY_RULE = ["--rules", *RULES]
KV_CACHE_RULES = Path(__file__).parents[1] / "analysis" / "examples" / "kv_cache_rules.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_olmo: Callable[..., OLMo]) -> Path:
    folder = tmp_path_factory.mktemp("every_rule")
    write_data(folder / "data", train_token_ids=[TRAIN_TOKENS])
    write_checkpoint(folder / "run", make_olmo(seed=1))
    measure(influential_tokens, folder, *EVERY_RULE)
    return folder


@pytest.fixture
def results(tmp_path: Path) -> list[str]:
    return ["--results", str(tmp_path / "results")]


def test_every_rule_ranks_the_far_context_and_its_null(folder: Path) -> None:
    rows = Results(folder / "results").frame("influential_tokens")
    assert len(rows) == 12 * 2 * len(RULES) * 5  # targets, distant contexts, rules, ranks
    assert not rows.duplicated([*TARGET, "rule", "distant_context", "context_position"]).any()
    assert (rows["distance"] > SHORT).all()
    mimics = rows["null_kind"] == "mimicry"
    assert set(rows["rule"][mimics]) == {"add_one_in_divergence", "greedy_divergence"}
    sparse = Results(folder / "results").frame("sparse_context_losses")
    best = sparse.query("k == 1").pivot_table(
        index=[*TARGET, "distant_context"], columns="rule", values="sparse_context_loss"
    )
    for rule in RULES:  # the best single token is what add_one_in is defined by
        assert (best["add_one_in"] <= best[rule] + 1e-5).all()
    assert (best["greedy"] == best["add_one_in"]).all()


def test_rules_of_a_file_are_measured_like_any_other(
    folder: Path, results: list[str], tmp_path: Path
) -> None:
    words = ["--rules", "streaming_llm", "snapkv", "recency", "--rule-file", str(KV_CACHE_RULES)]
    measure(influential_tokens, folder, *results, *words)
    chosen = Results(Path(results[1])).frame("influential_tokens").query("distant_context == 'own'")
    places = chosen["context_position"] - chosen["chunk_index"] * LONG
    of_rules = places.groupby([chosen["rule"], chosen["target_position"] % LONG]).agg(list)
    # s = 4: the distant contexts of the targets at 9, 10 and 11 end before 5, 6 and 7.
    for target, first in ((9, [0, 1, 2, 3, 4]), (10, [0, 1, 2, 3, 5]), (11, [0, 1, 2, 3, 6])):
        assert of_rules["streaming_llm", target] == first * 4  # in each of four chunks
        assert len(of_rules["snapkv", target]) == 5 * 4
    other = tmp_path / "other.py"
    other.write_text(KV_CACHE_RULES.read_text().replace("def ", "def other_"))
    with pytest.raises(InputError, match="rule_files_sha256"):  # a changed rule is another setting
        measure(influential_tokens, folder, *results, *words, str(other))
