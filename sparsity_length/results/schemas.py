"""The Arrow schema of every table, each column with its meaning and unit; words that results hold.

`python -m sparsity_length.results.schemas` writes the tables of pipeline/RESULTS.md anew, a test keeps them
equal. That page says what holds of all columns, and what null and NaN mean where a column does not say it.
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
MODEL = column("model", "string", "whose results these are; of tokens, who chose them")
EVALUATOR = column("evaluator", "string", "whose losses and divergences these are: the model itself, or"
                   " another that tried its choice (evaluate_tokens)")
DOCUMENT = column("document_id", "string", "first 16 hex digits of the SHA-256 of the document's text")
TARGET_COLUMNS = [
    DOCUMENT,
    column("chunk_index", "int32", "which chunk of long_context_length tokens of the document, from 0"),
    column("target_position", "int32", "place of the predicted token in the document, in tokens"),
]
SELECTION_COLUMNS = [
    column("rule", "string", "selection rule, a name in sparsity_length/measuring/rules.py"),
    column("distant_context", "string", "'own', or 'other_document': the null, another document's tokens"
           " there"),
    optional("null_kind", "string", "'selection': the null's tokens are chosen as within the own distant"
             " context; 'mimicry': to reproduce the prediction from that; null of the own one"),
]
SHORT_DIVERGENCE = optional("short_context_divergence", "float", "KL(p(.|long) || p(.|short context)), nats:"
                            " the gain to be expected, target-agnostic")
LOSS_COLUMNS = [
    column("short_context_loss", "float", "loss(t | the short_context_length tokens before t), nats"),
    column("long_context_loss", "float", "loss(t | everything before t in its chunk), nats"),
]
SYNTHETIC_COLUMNS = [
    MODEL,
    column("task", "string", "the synthetic task, a name of sparsity_length/synthetic/tasks.py"),
    column("positions", "string", "the position scheme that the model was trained with"),
    column("seed", "int64", "of the training run"),
    column("largest_train_size", "int32", "of the training examples, in the task's own unit"),
    optional("largest_train_sparsity", "int32", "K_train: k was uniform on 1 to this; null of tasks without"
             " k"),
    column("is_learnt", "bool", "at least 99 % of responses, over all training sizes, were wholly right,"
           " or the share that ends training (`stop_at_accuracy`); of cues: the excess loss that ends"
           " training was reached"),
    column("size", "int32", "of the test examples, in the task's own unit"),
    optional("sparsity", "int32", "k of the test examples; null of tasks without k"),
]
FINDING_COLUMNS = [
    *SYNTHETIC_COLUMNS,
    column("example_index", "int32", "which test example, from 0"),
    column("target_index", "int32", "which token of the response, or which position ID, from 0"),
    column("num_distant_tokens", "int32", "tokens that a rule selects from"),
    column("num_dependencies", "int32", "those of them that truly decide the target, at least 1"),
    column("long_context_loss", "float", "loss(t | everything before t), nats"),
    column("rule", "string", "selection rule, a name in sparsity_length/measuring/rules.py"),
    optional("ablation", "string", "'mask' or 'swap', as in influential_tokens; null of rules that know"
             " none"),
    column("rank", "int32", "1 for the token that the rule ranks first"),
    column("context_position", "int32", "place of the selected token in the example"),
    column("context_token", "string", "its name, as the task's docstring shows it"),
    column("is_dependency", "bool", "whether it is in the target's true dependency set"),
]
SCHEMAS: dict[str, pa.Schema] = {
    "evaluation_documents": pa.schema([
        DOCUMENT,
        optional("url", "string", "where the text was found, if its source says so"),
        column("token_ids", INTS, "the document's tokens, without a final EOS"),
        column("num_tokens", "int32", "length of token_ids"),
    ]),
    # What is planted in texts: the truth beside a data folder, not a stage's results.
    "needles": pa.schema([
        DOCUMENT,
        column("source_document_id", "string", "the document that the haystack was cut from"),
        column("context_length", "int32", "tokens of the document, its answer included"),
        optional("depth", "double", "share of the haystack before the needle, as asked for"),
        optional("needle_position", "int32", "place of the needle's first token"),
        column("num_needle_tokens", "int32", "tokens of the needle; 0 where none was planted"),
        column("needle_answer_positions", INTS, "places of the answer's tokens in the needle"),
        column("answer_position", "int32", "place of the answer's first token at the document's end"),
        column("num_answer_tokens", "int32", "tokens of the answer, the last of the document"),
        column("answer", "string", "its text, without the space before it"),
        optional("template", "string", "the fact that is told, as --templates names it; null in the oldest:"
                 " number"),
    ]),
    "loss_differences": pa.schema([
        MODEL,
        *TARGET_COLUMNS,
        column("target_token_id", "int32", "vocabulary ID of the predicted token"),
        column("num_long_context_tokens", "int32", "tokens before the target in its chunk"),
        *LOSS_COLUMNS,
        column("loss_difference", "float", "short_context_loss - long_context_loss, nats: the gain"),
        SHORT_DIVERGENCE,
        optional("swapped_context_loss", "float", "loss(t | another text's distant tokens, short context)"),
        optional("document_specific_gain", "float", "swapped_context_loss - long_context_loss, nats: the gain"
                 " that is this document's"),
        optional("swapped_context_divergence", "float", "KL(p(.|long) || p(.|swapped distant tokens, short"
                 " context)), nats: the document-specific gain to be expected"),
        optional("long_context_entropy", "float", "entropy of p(.|long), nats"),
    ]),
    "length_interference": pa.schema([
        MODEL,
        *TARGET_COLUMNS,
        column("target_token_id", "int32", "vocabulary ID of the predicted token"),
        column("placement", "string", "what is before the near tokens, as --placements names it; near:"
               " nothing"),
        optional("distant_document_id", "string", "the document that the distant tokens are from; null: the"
                 " own"),
        column("loss", "float", "loss(t | this placement), nats"),
        column("divergence", "float", "KL(p(.|near tokens) || p(.|this placement)), nats; of another"
               " document's tokens the length interference; with --compared-with full KL(p(.|full context) ||"
               " p(.|this placement))"),
        optional("entropy", "float", "of the prediction that divergences are from, nats; null of other"
                 " placements than near"),
        optional("is_top", "bool", "whether the target token is the model's top prediction; null in the"
                 " oldest"),
    ]),
    "influential_tokens": pa.schema([
        MODEL,
        *TARGET_COLUMNS,
        *SELECTION_COLUMNS,
        column("rank", "int32", "order of selection: 1 is taken first, S_k is ranks 1 to k"),
        column("context_position", "int32", "place of the selected token, in tokens of the document"),
        column("distance", "int32", "target_position - context_position"),
        column("context_token_id", "int32", "vocabulary ID of the selected token, own or swapped"),
        optional("influence", "float", "loss(t | long without the token) - loss(t | long), nats: positive if"
                 " it helps; under 'swap' the token is replaced; null without leave_one_out rules, or if"
                 " --screen left it out in blocks only"),
    ]),
    "influences": pa.schema([
        MODEL,
        *TARGET_COLUMNS,
        SELECTION_COLUMNS[1],
        column("influences", FLOATS, "influence of every distant-context token, nats; entry i is the token at"
               " chunk start + i. No rows without the rules leave_one_out and leave_one_out_divergence, nor"
               " with --screen"),
    ]),
    "sparse_context_losses": pa.schema([
        MODEL,
        EVALUATOR,
        *TARGET_COLUMNS,
        *SELECTION_COLUMNS,
        column("k", "int32", "number of influential tokens added to the short context"),
        *LOSS_COLUMNS,
        column("sparse_context_loss", "float", "loss(t | short context and S_k only), nats; under the"
               " ablation 'swap' other documents' tokens are the rest of the distant context: mean over"
               " trial_swaps documents, none of which stood in while S_k was chosen"),
        SHORT_DIVERGENCE,
        optional("sparse_context_divergence", "float", "KL(p(.|long) || p(.|short context, S_k)), nats"),
        optional("swapped_loss", "float", "loss(t | swapped distant tokens, short context), nats, to which"
                 " S_k is added under the ablation 'swap': mean over these documents; null under another"),
        optional("swapped_divergence", "float", "KL(p(.|long) || p(.|swapped distant, short context)), nats"),
    ]),
    "dependency_sparsity": pa.schema([
        MODEL,
        EVALUATOR,
        *TARGET_COLUMNS,
        SELECTION_COLUMNS[0],
        column("criterion", "string", "k* is of the 'loss' or 'divergence'"),
        column("loss_difference", "float", "short_context_loss - long_context_loss, nats"),
        column("gain", "float", "what is to be recovered, nats, by the criterion: loss_difference or"
               " short_context_divergence, under the ablation 'swap' swapped_loss -"
               " long_context_loss or swapped_divergence"),
        optional("mean_log2_k", "float", "tokens needed, in doublings: mean over thresholds in (0, 1) of log2"
                 " of the least k that recovers that share of the gain, interpolated in log2 k, from 0 (one"
                 " token suffices) to log2 of all distant tokens; mean over swapped contexts; null if the"
                 " gain is too small"),
        optional("mean_log2_k_of_swaps", FLOATS, "the same in each swapped context of the trial; null"
                 " without a gain"),
        optional("k_90", "int32", "k*: the least studied k recovering 90% of"
                 " the gain; null where the gain is below the minimum, or no studied k reaches it"),
        optional("k_50", "int32", "the least studied k recovering half of the gain; null likewise"),
        column("is_censored", "bool", "the long context helps enough, but no studied k recovers enough of"
               " it"),
    ]),
    "length_losses": pa.schema([
        MODEL,
        *TARGET_COLUMNS[:2],
        column("context_length", "int32", "tokens of context, exactly, for every target"),
        column("num_targets", "int32", "targets of the chunk"),
        column("mean_loss", "float", "mean loss over these targets, nats"),
        optional("mean_divergence", "float", "their mean KL(p(.|long) || p(.|context of this length)), nats"),
        optional("losses", FLOATS, "the loss of each target, in the order of positions, nats"),
        optional("divergences", FLOATS, "the divergence of each, nats"),
    ]),
    "found_dependencies": pa.schema(FINDING_COLUMNS),
    # The same of position IDs that the model predicts; target_index is then of the response's IDs.
    "found_id_dependencies": pa.schema([
        *FINDING_COLUMNS,
        optional("effect", "float", "what leaving the token out, or another in its place (ablation"
                 " 'substitute'), does, nats: to the loss (leave_one_out) or to the prediction"
                 " (leave_one_out_divergence); null of other rules"),
    ]),
    "sparse_functional_attention": pa.schema([
        MODEL,
        column("seed", "int32", "of the fit, its training and its test sequences"),
        column("sparsity", "int32", "k: planted tokens, and tokens of a subset attended to"),
        column("position_law", "string", "of the planted tokens, as sparsity_length/figures/theory.py"),
        column("position_scheme", "string", "contiguous, or coupled: both halves count from 0"),
        column("key_reach", "int32", "keys are 0 where position IDs differ by this or more"),
        column("local_length", "int32", "L_local of the law, tokens; the uniform law has none"),
        optional("objective", "string", "loss of a step: of one length drawn uniformly (one_length; null in"
                 " rows from before there was another), or over all lengths (mean, minimax)"),
        column("train_context_length", "int32", "L: training sequences have L/2 to L tokens"),
        column("training_step", "int32", "steps trained when this was measured"),
        column("test_length", "int32", "tokens of the test sequences"),
        column("num_sequences", "int32", "test sequences"),
        column("squared_error", "double", "mean of (h(X) - y)^2, labels -1 and 1; saying 0 costs 1"),
        column("error_rate", "double", "fraction of sequences where h(X) has not the label's sign"),
    ]),
    "synthetic_accuracy": pa.schema([
        *SYNTHETIC_COLUMNS,
        column("num_tokens", "int32", "tokens of a test example, prompt and response"),
        column("num_examples", "int32", "test examples"),
        column("exact_match", "double", "share of responses wholly right, in predicted position IDs too"),
        column("exact_match_low", "double", "lower end of its 95 % interval, Wilson's over examples"),
        column("exact_match_high", "double", "upper end of it"),
        column("token_accuracy", "double", "share of response tokens that are right, generated freely"),
        optional("position_id_accuracy", "double", "the same of the response's position IDs; null where"
                 " given"),
        optional("excess_loss", "double", "mean loss of the answer beyond the best possible one, nats: KL"
                 " from what the cues say to what the model says; null where the answer is certain"),
        optional("excess_loss_error", "double", "its standard error over examples"),
        optional("best_loss", "double", "the best possible mean loss, nats, exactly"),
    ]),
    "synthetic_examples": pa.schema([
        *SYNTHETIC_COLUMNS,
        column("example_index", "int32", "which test example of its size and k, from 0"),
        column("is_right", "bool", "whether the whole response is right, predicted position IDs included"),
        column("answer", "string", "the first token of the model's response, by name"),
        optional("decisive_tokens", "string", "the tokens that decide the right one, in order, as the task's"
                 " docstring shows them"),
        optional("distances", INTS, "tokens from each of them to the prompt's last, such as the question"),
        optional("excess_loss", "float", "loss beyond the best possible one, nats; null as above"),
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
