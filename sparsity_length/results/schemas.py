"""The Arrow schema of every table, with the meaning and unit of each column; names that results contain.

`python -m sparsity_length.results.schemas` rewrites the tables of pipeline/RESULTS.md; a test keeps the two
equal. That page also says what applies to all columns, and what null means.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

# Raised with any change of a column: readers take the columns of a table from any one of its files.
SCHEMA_VERSION = 4
OWN = "own"
OTHER_DOCUMENT = "other_document"
"""Distant contexts: the chunk's own; and of its null, another document's tokens at the same positions."""
SELECTION = "selection"
MIMICRY = "mimicry"
"""Kinds of null: the rule chooses within the other document's distant context as it does within the own one;
or it chooses that document's tokens to reproduce the prediction from the own distant context."""
LOSS = "loss"
DIVERGENCE = "divergence"
"""Criteria of k*."""
Columns = Mapping[str, Any]
"""Column -> values row by row, an array or a list, or one for all rows; NaN and None are null."""


INTS = pa.list_(pa.int32())
FLOATS = pa.list_(pa.float32())


def column(name: str, arrow_type: pa.DataType | str, meaning: str, nullable: bool = False) -> pa.Field:
    """A column with its meaning, unit included."""
    return pa.field(name, arrow_type, nullable=nullable, metadata={"meaning": meaning})


optional = partial(column, nullable=True)

# fmt: off
MODEL = column("model", "string", "the model that was measured; for selected tokens, the selector")
EVALUATOR = column("evaluator", "string", "the model that computed losses and divergences: the selector"
                   " itself, or another one that evaluated its choice (evaluate_tokens)")
DOCUMENT = column("document_id", "string", "first 16 hex digits of the SHA-256 of the document's text")
TARGET_COLUMNS = [
    DOCUMENT,
    column("chunk_index", "int32", "index of the chunk of long_context_length tokens in the document, from"
           " 0"),
    column("target_position", "int32", "position of the predicted token in the document, in tokens"),
]
SELECTION_COLUMNS = [
    column("rule", "string", "selection rule, a name in sparsity_length/measuring/rules.py"),
    column("distant_context", "string", "'own', or 'other_document' for the null baseline, where another"
           " document's tokens replace the distant ones"),
    optional("null_kind", "string", "'selection' if the rule searched the other document as it searches the"
             " own one, 'mimicry' if it searched it for tokens that reproduce the prediction from the own"
             " distant context; null if the distant context is the own one"),
]
SHORT_DIVERGENCE = optional("short_context_divergence", "float", "KL(p(.|long) || p(.|short context)), nats:"
                            " the expected gain, which is target-agnostic")
LOSS_COLUMNS = [
    column("short_context_loss", "float", "loss(t | the short_context_length tokens before t), nats"),
    column("long_context_loss", "float", "loss(t | everything before t in its chunk), nats"),
]
SYNTHETIC_COLUMNS = [
    MODEL,
    column("task", "string", "synthetic task, a name in sparsity_length/synthetic/tasks.py"),
    column("positions", "string", "position scheme that the model was trained with"),
    column("seed", "int64", "random seed of the training run"),
    column("largest_train_size", "int32", "largest size of training examples, in the task's own unit"),
    optional("largest_train_sparsity", "int32", "K_train: training drew k uniformly from 1 to this; null"
             " for tasks without k"),
    column("is_learnt", "bool", "whether the model learned its task: at least 99% of responses, over all"
           " training sizes, were entirely right, or the fraction that ends training (`stop_at_accuracy`);"
           " for cues, whether the excess loss that ends training was reached"),
    column("size", "int32", "size of the test examples, in the task's own unit"),
    optional("sparsity", "int32", "k of the test examples; null for tasks without k"),
]
FINDING_COLUMNS = [
    *SYNTHETIC_COLUMNS,
    column("example_index", "int32", "index of the test example, from 0"),
    column("target_index", "int32", "index of the response's token, or of its position ID, from 0"),
    column("num_distant_tokens", "int32", "number of tokens that a rule selects from"),
    column("num_dependencies", "int32", "number of these tokens that truly decide the target, at least 1"),
    column("long_context_loss", "float", "loss(t | everything before t), nats"),
    column("rule", "string", "selection rule, a name in sparsity_length/measuring/rules.py"),
    optional("ablation", "string", "'mask' or 'swap', as in influential_tokens; null for rules that ablate"
             " nothing"),
    column("rank", "int32", "rank that the rule gives the token; 1 is first"),
    column("context_position", "int32", "position of the selected token in the example"),
    column("context_token", "string", "name of the selected token, as in the task's docstring"),
    column("is_dependency", "bool", "whether the selected token is in the target's true dependency set"),
]
SCHEMAS: dict[str, pa.Schema] = {
    "evaluation_documents": pa.schema([
        DOCUMENT,
        optional("url", "string", "URL of the text, if its source names one"),
        column("token_ids", INTS, "the document's tokens, without a final EOS"),
        column("num_tokens", "int32", "number of tokens in token_ids"),
    ]),
    # What is planted in texts: the truth beside a data folder, not a stage's results.
    "needles": pa.schema([
        DOCUMENT,
        column("source_document_id", "string", "document that the haystack was cut from"),
        column("context_length", "int32", "number of tokens of the document, including its answer"),
        optional("depth", "double", "fraction of the haystack before the needle, as requested; null for"
                 " controls"),
        optional("needle_position", "int32", "position of the needle's first token; null for controls"),
        column("num_needle_tokens", "int32", "number of tokens of the needle; 0 for controls"),
        column("needle_answer_positions", INTS, "positions of the answer's tokens in the needle"),
        column("answer_position", "int32", "position of the first token of the answer that ends the"
               " document"),
        column("num_answer_tokens", "int32", "number of tokens of this answer, the last ones of the"
               " document"),
        column("answer", "string", "text of the answer, without the space before it"),
        column("template", "string", "kind of fact, a name of --templates"),
    ]),
    "loss_differences": pa.schema([
        MODEL,
        *TARGET_COLUMNS,
        column("target_token_id", "int32", "vocabulary ID of the predicted token"),
        column("num_long_context_tokens", "int32", "number of tokens before the target in its chunk"),
        *LOSS_COLUMNS,
        column("loss_difference", "float", "short_context_loss - long_context_loss, nats: the gain from the"
               " distant context"),
        SHORT_DIVERGENCE,
        optional("swapped_context_loss", "float", "loss(t | another document's distant tokens, short"
                 " context), nats"),
        optional("document_specific_gain", "float", "swapped_context_loss - long_context_loss, nats: the"
                 " gain that only this document's tokens give"),
        optional("swapped_context_divergence", "float", "KL(p(.|long) || p(.|swapped distant tokens, short"
                 " context)), nats: the expected document-specific gain"),
        optional("long_context_entropy", "float", "entropy of p(.|long), nats"),
    ]),
    "length_interference": pa.schema([
        MODEL,
        *TARGET_COLUMNS,
        column("target_token_id", "int32", "vocabulary ID of the predicted token"),
        column("placement", "string", "what stands before the near tokens, as in --placements; 'near' if"
               " nothing does"),
        optional("distant_document_id", "string", "document that the distant tokens come from; null if they"
                 " are the text's own"),
        column("loss", "float", "loss(t | this placement), nats"),
        column("divergence", "float", "KL(p(.|near tokens) || p(.|this placement)), nats; with another"
               " document's tokens, the length interference; with --compared-with full,"
               " KL(p(.|full context) || p(.|this placement))"),
        optional("entropy", "float", "entropy of the prediction that divergences are from, nats; null for all"
                 " placements but 'near'"),
        column("is_top", "bool", "whether the target token is the model's top prediction"),
    ]),
    "influential_tokens": pa.schema([
        MODEL,
        *TARGET_COLUMNS,
        *SELECTION_COLUMNS,
        column("rank", "int32", "order of selection; S_k are the tokens of ranks 1 to k"),
        column("context_position", "int32", "position of the selected token in the document"),
        column("distance", "int32", "target_position - context_position"),
        column("context_token_id", "int32", "vocabulary ID of the selected token, in the distant context of"
               " the row"),
        optional("influence", "float", "loss(t | long context without the token) - loss(t | long context),"
                 " nats, positive if the token helps; if --search-swaps is not 0, the token is replaced,"
                 " not removed; null without leave_one_out rules, or if --screen only estimated it"),
    ]),
    "influences": pa.schema([
        MODEL,
        *TARGET_COLUMNS,
        SELECTION_COLUMNS[1],
        column("influences", FLOATS, "influence of every distant token, nats; entry i belongs to the token"
               " at chunk start + i. There are no rows without the rules leave_one_out or"
               " leave_one_out_divergence, and none with a --screen of fewer than all of them"),
    ]),
    "sparse_context_losses": pa.schema([
        MODEL,
        EVALUATOR,
        *TARGET_COLUMNS,
        *SELECTION_COLUMNS,
        column("k", "int32", "number of selected tokens added to the short context"),
        *LOSS_COLUMNS,
        column("sparse_context_loss", "float", "loss(t | short context, S_k), nats; under the ablation"
               " 'swap', other documents' tokens take all other distant places, and this is the mean over"
               " trial_swaps documents, none of which was used to select S_k"),
        SHORT_DIVERGENCE,
        optional("sparse_context_divergence", "float", "KL(p(.|long) || p(.|short context, S_k)), nats"),
        optional("swapped_loss", "float", "loss(t | swapped distant tokens, short context), nats: the loss"
                 " before S_k is added under the ablation 'swap', the mean over the same documents; null"
                 " under 'mask'"),
        optional("swapped_divergence", "float", "KL(p(.|long) || p(.|swapped distant tokens, short"
                 " context)), nats; null under 'mask'"),
    ]),
    "dependency_sparsity": pa.schema([
        MODEL,
        EVALUATOR,
        *TARGET_COLUMNS,
        SELECTION_COLUMNS[0],
        column("criterion", "string", "quantity that k* is about: 'loss' or 'divergence'"),
        column("loss_difference", "float", "short_context_loss - long_context_loss, nats"),
        column("gain", "float", "gain to recover, nats: by criterion, loss_difference or"
               " short_context_divergence; under the ablation 'swap', swapped_loss - long_context_loss or"
               " swapped_divergence"),
        optional("mean_log2_k", "float", "needed tokens in doublings: for each fraction of the gain from 0"
                 " to 1, log2 of the smallest k that recovers it (interpolated in log2 k), averaged over"
                 " fractions and swapped contexts; from 0 (one token suffices) to log2 of the number of"
                 " distant tokens; null if the gain is below the minimum"),
        optional("mean_log2_k_of_swaps", FLOATS, "mean_log2_k in each swapped context of the trial; null"
                 " without a gain"),
        optional("k_90", "int32", "k*, the smallest measured k that recovers 90% of the gain; null if the"
                 " gain is below the minimum or no measured k suffices"),
        optional("k_50", "int32", "the smallest measured k that recovers 50% of the gain; null as for k_90"),
        column("is_censored", "bool", "whether the gain reaches the minimum but no measured k recovers 90%"
               " of it"),
    ]),
    "length_losses": pa.schema([
        MODEL,
        *TARGET_COLUMNS[:2],
        column("context_length", "int32", "exact number of context tokens of every target"),
        column("num_targets", "int32", "number of targets in the chunk"),
        column("mean_loss", "float", "mean loss over these targets, nats"),
        optional("mean_divergence", "float", "mean of KL(p(.|long) || p(.|context of this length)) over"
                 " these targets, nats"),
        optional("losses", FLOATS, "loss of each target, in the order of positions, nats"),
        optional("divergences", FLOATS, "divergence of each target, nats"),
    ]),
    "found_dependencies": pa.schema(FINDING_COLUMNS),
    # The same for position IDs that the model predicts; target_index then counts the response's IDs.
    "found_id_dependencies": pa.schema([
        *FINDING_COLUMNS,
        optional("effect", "float", "effect of removing the token, or of replacing it (ablation 'swap'),"
                 " nats: on the loss (leave_one_out) or on the prediction (leave_one_out_divergence); null"
                 " for other rules"),
    ]),
    "sparse_functional_attention": pa.schema([
        MODEL,
        column("seed", "int32", "random seed of the fit, its training sequences and its test sequences"),
        column("sparsity", "int32", "k: number of planted tokens, and of tokens in a subset"),
        column("position_law", "string", "law of the planted positions, a name in"
               " sparsity_length/figures/theory.py"),
        column("position_scheme", "string", "'contiguous', or 'coupled' if both halves count from 0"),
        column("key_reach", "int32", "keys are 0 if position IDs differ by this or more"),
        column("local_length", "int32", "L_local of the position law, in tokens"),
        column("objective", "string", "loss of a training step: at one length drawn uniformly"
               " ('one_length'), or over all lengths ('mean', 'minimax')"),
        column("train_context_length", "int32", "L: training sequences have L/2 to L tokens"),
        column("training_step", "int32", "number of training steps before the measurement"),
        column("test_length", "int32", "length of the test sequences, in tokens"),
        column("num_sequences", "int32", "number of test sequences"),
        column("squared_error", "double", "mean of (h(X) - y)^2 for labels -1 and 1; predicting 0 costs 1"),
        column("error_rate", "double", "fraction of sequences where h(X) does not have the label's sign"),
    ]),
    "synthetic_accuracy": pa.schema([
        *SYNTHETIC_COLUMNS,
        column("num_tokens", "int32", "number of tokens of a test example, prompt and response"),
        column("num_examples", "int32", "number of test examples"),
        column("exact_match", "double", "fraction of responses that are entirely right, including predicted"
               " position IDs"),
        column("exact_match_low", "double", "lower end of the 95% Wilson interval of exact_match over"
               " examples"),
        column("exact_match_high", "double", "upper end of this interval"),
        column("token_accuracy", "double", "fraction of freely generated response tokens that are right"),
        optional("position_id_accuracy", "double", "fraction of the response's position IDs that are right;"
                 " null if they are given"),
        optional("excess_loss", "double", "mean excess of the answer's loss over the best possible one,"
                 " nats: KL from the distribution given the cues to the model's; null if the answer is"
                 " certain"),
        optional("excess_loss_error", "double", "standard error of excess_loss over examples"),
        optional("best_loss", "double", "best possible mean loss, nats, computed exactly"),
    ]),
    "synthetic_examples": pa.schema([
        *SYNTHETIC_COLUMNS,
        column("example_index", "int32", "index of the test example among those of its size and k, from 0"),
        column("is_right", "bool", "whether the whole response is right, including predicted position IDs"),
        column("answer", "string", "name of the first token of the model's response"),
        optional("decisive_tokens", "string", "tokens that decide the right answer, in order, as in the"
                 " task's docstring"),
        optional("distances", INTS, "number of tokens from each decisive token to the last token of the"
                 " prompt"),
        optional("excess_loss", "float", "excess of the loss over the best possible one, nats; null if the"
                 " answer is certain"),
    ]),
}
# fmt: on


def results_page(page: str) -> str:
    """The page with new lists of columns, one per table; what an earlier one explains is only named."""
    lines = [page.partition("\n\n## ")[0]]
    for table, schema in SCHEMAS.items():
        # By the whole line and not the name, which may mean another thing in another table.
        names = {
            f"- `{field.name}` ({str(field.type).replace('item: ', '')}{'?' if field.nullable else ''}):"
            f" {field.metadata[b'meaning'].decode()}": f"`{field.name}`"
            for field in schema
        }
        known = [name for line, name in names.items() if line in lines]
        lines.append(f"\n## {table}\n" + (f"\nAs above: {', '.join(known)}.\n" if known else ""))
        lines += [line for line in names if line not in lines]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    path = Path(__file__).resolve().parents[2] / "pipeline" / "RESULTS.md"
    path.write_text(results_page(path.read_text(encoding="utf-8")), encoding="utf-8")
