"""The Arrow schema of every artefact, each column with its meaning and unit.

`pipeline/RESULTS.md` is this file in prose: `python -m pipeline.results.schemas > pipeline/RESULTS.md`
writes it, a test keeps the two equal. Losses are in nats; a *_loss is never negative. Positions count tokens
from the start of the document; a target at position t is predicted from the tokens before it.
"""

import pyarrow as pa

from pipeline.results.derived_schemas import DERIVED_SCHEMAS
from pipeline.results.planted_schemas import PLANTED_SCHEMAS
from pipeline.results.schema_columns import (
    FINDING_COLUMNS,
    FURTHER_SPARSITY_COLUMNS,
    HEAD_COLUMNS,
    JUDGE,
    LOSS_COLUMNS,
    SELECTION_COLUMNS,
    SHORT_DIVERGENCE,
    SYNTHETIC_COLUMNS,
    TARGET_COLUMNS,
    TRAINING_COLUMNS,
    column,
)

# Raised when a column goes, or its type or meaning changes. A new column that may be null does not raise it:
# older files read as null there, and a run that an older version began goes on.
SCHEMA_VERSION = 2
AS_IN_VERSION_1 = frozenset({"sparse_functional_attention", "synthetic_accuracy"})
"""Artefacts that version 2 left as they were: files of the two may be read together."""

SCHEMAS: dict[str, pa.Schema] = {
    "evaluation_documents": pa.schema(
        [
            column("document_id", pa.string(), "first 16 hex digits of the SHA-256 of the document's text"),
            column("url", pa.string(), "where the text was found, if its source says so", nullable=True),
            column("token_ids", pa.list_(pa.int32()), "the document's tokens, without a final EOS"),
            column("num_tokens", pa.int32(), "length of token_ids"),
        ]
    ),
    **PLANTED_SCHEMAS,
    "loss_differences": pa.schema(
        [
            *TARGET_COLUMNS,
            column("target_token_id", pa.int32(), "vocabulary ID of the predicted token"),
            column("num_long_context_tokens", pa.int32(), "tokens before the target in its chunk"),
            *LOSS_COLUMNS,
            column(
                "loss_difference",
                pa.float32(),
                "short_context_loss - long_context_loss, nats; positive = the long context helps",
            ),
            column(
                "windowed_short_context_loss",
                pa.float32(),
                "loss(t | the short context as LongPPL's code approximates it), nats: one window shared by"
                " windowed_stride targets, which see short_context_length to short_context_length"
                " + windowed_stride - 1 tokens, position IDs from 0 in each; null where not asked for",
                nullable=True,
            ),
            SHORT_DIVERGENCE,
            column(
                "foreign_context_loss",
                pa.float32(),
                "loss(t | another document's tokens as the far context, and the short one), nats",
                nullable=True,
            ),
            column(
                "specific_gain",
                pa.float32(),
                "foreign_context_loss - long_context_loss, nats: what only this document's far tokens give",
                nullable=True,
            ),
            column(
                "foreign_context_divergence",
                pa.float32(),
                "KL(p(.|long) || p(.|foreign far context, short context)), nats: the specific gain that is"
                " expected",
                nullable=True,
            ),
            column(
                "reference_divergence",
                pa.float32(),
                "KL(p_ref(.|long) || p(.|long)), p_ref of --reference-model, nats; null where not asked for",
                nullable=True,
            ),
        ]
    ),
    "influential_tokens": pa.schema(
        [
            *TARGET_COLUMNS,
            *SELECTION_COLUMNS,
            column("rank", pa.int32(), "order of selection: 1 is taken first, S_k is ranks 1 to k"),
            column("context_position", pa.int32(), "place of the selected token, in tokens of the document"),
            column("distance", pa.int32(), "target_position - context_position"),
            column(
                "context_token_id",
                pa.int32(),
                "vocabulary ID of the selected token (of the other document's, for the null)",
            ),
            column(
                "influence",
                pa.float32(),
                "loss(t | long without the token) - loss(t | long), nats, whatever the rule;"
                " positive = the token helps; null where it was not measured: the run has neither of the"
                " rules leave_one_out and leave_one_out_divergence, and leave_one_out_search, if it has that,"
                " did not leave this token out. Under the interventions 'substitute' and 'background' (see"
                " `settings`) the token is replaced, not removed",
                nullable=True,
            ),
        ]
    ),
    "influences": pa.schema(
        [
            *TARGET_COLUMNS,
            SELECTION_COLUMNS[1],
            column(
                "influences",
                pa.list_(pa.float32()),
                "influence of every far-context token, nats; entry i is the token at chunk start + i."
                " No such rows where the run has neither of the rules leave_one_out and"
                " leave_one_out_divergence",
            ),
        ]
    ),
    "attention_heads": pa.schema(HEAD_COLUMNS),
    "sparse_context_losses": pa.schema(
        [
            *TARGET_COLUMNS,
            *SELECTION_COLUMNS,
            JUDGE,
            column("k", pa.int32(), "number of influential tokens added to the short context"),
            *LOSS_COLUMNS,
            column(
                "sparse_context_loss",
                pa.float32(),
                "loss(t | short context and S_k only), nats; under the intervention 'background' a foreign"
                " document's tokens are the rest of the far context",
            ),
            SHORT_DIVERGENCE,
            column(
                "sparse_context_divergence",
                pa.float32(),
                "KL(p(.|long) || p(.|short context and S_k)), nats: what k tokens leave missing",
                nullable=True,
            ),
            column(
                "background_loss",
                pa.float32(),
                "loss(t | a foreign far context, short context), nats, what S_k is added to under the"
                " intervention 'background'; null under another",
                nullable=True,
            ),
            column(
                "background_divergence",
                pa.float32(),
                "KL(p(.|long) || p(.|foreign far context, short context)), nats; null as background_loss",
                nullable=True,
            ),
        ]
    ),
    "dependency_sparsity": pa.schema(
        [
            *TARGET_COLUMNS,
            SELECTION_COLUMNS[0],
            JUDGE,
            column(
                "criterion",
                pa.string(),
                "what k* is of, 'loss' or 'divergence'; null in results of version 1: the loss",
                nullable=True,
            ),
            column("loss_difference", pa.float32(), "short_context_loss - long_context_loss, nats"),
            column(
                "gain",
                pa.float32(),
                "what is to be recovered, nats: loss_difference or short_context_divergence by the criterion;"
                " under the intervention 'background' background_loss - long_context_loss or"
                " background_divergence; null in results of version 1",
                nullable=True,
            ),
            column(
                "dependency_sparsity",
                pa.int32(),
                "k*: the least studied k recovering the recovery fraction of the gain; null where the gain"
                " is below the minimum, or no studied k reaches it",
                nullable=True,
            ),
            column("is_censored", pa.bool_(), "the long context helps enough, but no studied k reaches k*"),
            *FURTHER_SPARSITY_COLUMNS,
        ]
    ),
    **DERIVED_SCHEMAS,
    "token_categories": pa.schema(
        [
            *TARGET_COLUMNS,
            column("word_part", pa.string(), "'word start', 'continuation' or 'no word'"),
            column(
                "word_kind",
                pa.string(),
                "of the word that the token is part of: 'number', 'function word', 'capitalized name' or"
                " 'content word'; else 'punctuation' or 'white space'. Rules: analysis/tokens/words.py",
            ),
            column(
                "repetition",
                pa.string(),
                "'repeated trigram', 'repeated bigram' or 'repeated token' of the far context, 'short context"
                " only', 'new'; the first that fits, by vocabulary ID within the chunk",
            ),
            column(
                "part_of_speech",
                pa.string(),
                "by HanTa, in classes of analysis/tokens/parts_of_speech.py; null where it is not installed",
                nullable=True,
            ),
        ]
    ),
    "length_losses": pa.schema(
        [
            *TARGET_COLUMNS[:2],
            column("context_length", pa.int32(), "tokens of context, exactly, for every target"),
            column("num_targets", pa.int32(), "targets of the chunk"),
            column("mean_loss", pa.float32(), "mean loss over these targets, nats"),
            column(
                "mean_divergence",
                pa.float32(),
                "mean over these targets of KL(p(.|long) || p(.|context of this length)), nats",
                nullable=True,
            ),
        ]
    ),
    "found_dependencies": pa.schema(FINDING_COLUMNS),
    "found_id_dependencies": pa.schema(FINDING_COLUMNS),
    "sparse_functional_attention": pa.schema(
        [
            column("seed", pa.int32(), "of the fit, its training and its test sequences"),
            column("sparsity", pa.int32(), "k: planted tokens, and tokens of a subset attended to"),
            column("position_law", pa.string(), "of the planted tokens, as pipeline/theory/conditions.py"),
            column("position_scheme", pa.string(), "contiguous, or coupled: both halves count from 0"),
            column("key_reach", pa.int32(), "keys are 0 where position IDs differ by this or more"),
            column("local_length", pa.int32(), "L_local of the law, tokens; the uniform law has none"),
            column("train_context_length", pa.int32(), "L: training sequences have L/2 to L tokens"),
            column("training_step", pa.int32(), "steps trained when this was measured"),
            column("test_length", pa.int32(), "tokens of the test sequences"),
            column("num_sequences", pa.int32(), "test sequences"),
            column("squared_error", pa.float64(), "mean of (h(X) - y)^2, labels -1 and 1; saying 0 costs 1"),
            column("error_rate", pa.float64(), "fraction of sequences where h(X) has not the label's sign"),
        ]
    ),
    "synthetic_accuracy": pa.schema(
        [
            *SYNTHETIC_COLUMNS,
            column("num_tokens", pa.int32(), "tokens of a test example, prompt and response"),
            column("num_examples", pa.int32(), "test examples"),
            column(
                "exact_match",
                pa.float64(),
                "share of responses with every token right and, where IDs are predicted, every ID",
            ),
            column("exact_match_low", pa.float64(), "lower end of its 95 % Wilson interval over examples"),
            column("exact_match_high", pa.float64(), "upper end of it"),
            column(
                "token_accuracy", pa.float64(), "share of response tokens that are right, generated freely"
            ),
            column(
                "position_id_accuracy",
                pa.float64(),
                "share of the response's position IDs that are right; null where they are given",
                nullable=True,
            ),
        ]
    ),
    "synthetic_training": pa.schema(TRAINING_COLUMNS),
}

_PREAMBLE = """# What the Parquet files hold

Written by `python -m pipeline.results.schemas > pipeline/RESULTS.md`; a test keeps it equal to the schemas.

A results folder holds one folder an artefact, `<artefact>/model=<model>/<shard>-of-<shards>.parquet`, so
`pandas.read_parquet("<results>/<artefact>")` reads all models at once and adds the column `model`.
`selection_rules` and `token_categories` are made by the analysis: one file each, such as
`selection_rules.parquet`, beside the figures; the latter is of the text alone, and the same for all models.
`synthetic_training` is in the run folder of train_synthetic: `synthetic_training.parquet`.
In `sparse_functional_attention` the model is the name of its condition and of k, such as `local-k2`.
Losses are in nats, and never negative; `_position` counts tokens from the start of the document.
Each file's metadata (`pyarrow.parquet.read_schema(path).metadata`) holds `schema_version`, `stage`,
`settings` (the full configuration: rules, intervention, engine and dtype among it), `inputs` (SHA-256 of
checkpoint and documents), `model_facts` (num_parameters, train_step, train_context_length, position_scheme,
seed, as far as the checkpoint tells them), `git_commit` and `packages` (their versions). A table that was
made of results read in part (`--allow-partial`) says of which in its metadata's `note`.

A shard is whole once its completion mark stands, `_stages/<stage>/model=<model>/<shard>-of-<shards>.done`,
which holds rows, bytes and SHA-256 of its files. Programs here check that, and refuse results that are
damaged or not complete; pandas knows nothing of it, but can be told to check the pages of the files that it
reads: `pandas.read_parquet(..., page_checksum_verification=True)`.

An export, such as the results below `analysis/reference`, is `<artefact>.parquet` beside `exported.json`,
which holds rows, bytes and SHA-256 of its files: all models' rows in one file, the column `model` first. Its
metadata's `models` tells, as JSON, for each model what the metadata of its files told.
`python -m pipeline.results.exported <results> --out <folder>` makes it; without `--out` that vouches for
Parquet files that were put together by hand.
"""


def results_page() -> str:
    """The text of pipeline/RESULTS.md: a table an artefact, a row a column."""
    sections = [_PREAMBLE]
    for artefact, schema in SCHEMAS.items():
        rows = [_table_row(field) for field in schema]
        heading = [f"## {artefact}\n", "| column | type | meaning |", "|---|---|---|"]
        sections.append("\n".join([*heading, *rows, ""]))
    return "\n".join(sections)


def _table_row(field: pa.Field) -> str:
    meaning = field.metadata[b"meaning"].decode().replace("|", r"\|")
    return f"| `{field.name}` | {field.type}{', may be null' if field.nullable else ''} | {meaning} |"


if __name__ == "__main__":
    print(results_page(), end="")  # noqa: T201
