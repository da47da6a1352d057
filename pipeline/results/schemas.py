"""The Arrow schema of every artefact, each column with its meaning and unit; words that results hold.

`python -m pipeline.results.schemas` writes the tables of pipeline/RESULTS.md anew, a test keeps them equal.
Losses are in nats; a *_loss is never negative. Positions count tokens from the start of the document; a
target at position t is predicted from the tokens before it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

# Raised when a column goes, or its type or meaning changes. A new column that may be null does not raise it:
# older files read as null there, and a run that an older version began goes on.
SCHEMA_VERSION = 2
OWN, OTHER_DOCUMENT = "own", "other_document"
"""Far contexts: the chunk's own; and of its null, another document's tokens at the same positions."""
SELECTION, MIMICRY = "selection", "mimicry"
"""Kinds of null: the rule chooses within the other document's far context as it does within the own one; or
it chooses that document's tokens to reproduce the prediction from the own far context."""
LOSS, DIVERGENCE = "loss", "divergence"
"""Criteria of k*."""
ATTENTION_HEADS = "attention_heads"
"""The artefact, and what it is filed under, of the weights that rules learned_attention* need;
influential_tokens fits them before it measures."""
Columns = dict[str, list[Any]]
"""Column -> values, one a row."""


def append_columns(tables: dict[str, Columns], rows: Mapping[str, Columns]) -> None:
    """Append the rows of each artefact to its table, in place."""
    for artefact, columns in rows.items():
        table = tables.setdefault(artefact, {name: [] for name in columns})
        for name, values in columns.items():
            table[name].extend(values)


def column(name: str, arrow_type: pa.DataType, meaning: str, nullable: bool = False) -> pa.Field:
    """A column with its meaning, unit included."""
    return pa.field(name, arrow_type, nullable=nullable, metadata={"meaning": meaning})


_ENDS = {
    "low": "lower end of its 95 % interval over documents",
    "high": "upper end of it; both are NaN for a single document",
}


def with_interval(name: str, meaning: str) -> list[pa.Field]:
    """A number and the ends of its interval."""
    ends = [column(f"{name}_{end}", pa.float64(), of_end) for end, of_end in _ENDS.items()]
    return [column(name, pa.float64(), meaning), *ends]


# fmt: off
DOCUMENT = column("document_id", pa.string(), "first 16 hex digits of the SHA-256 of the document's text")
TARGET_COLUMNS = [
    DOCUMENT,
    column("chunk_index", pa.int32(), "which chunk of long_context_length tokens of the document, from 0"),
    column("target_position", pa.int32(), "place of the predicted token in the document, in tokens"),
]
SELECTION_COLUMNS = [
    column("rule", pa.string(), "selection rule, a name of pipeline/measuring/rules.py"),
    column("far_context", pa.string(), "'own', or 'other_document': the null, where the far context is"
           " another document's tokens at the same positions"),
    column("null_kind", pa.string(), "how the null's tokens are chosen: 'selection', within the other"
           " document's far context as within the own one, or 'mimicry', to reproduce the prediction from"
           " the own far context; null of the own far context, and in the oldest results, where it is"
           " selection", nullable=True),
]
MODEL = column("model", pa.string(), "the model's name")
K = column("k", pa.int32(), "number of influential tokens added to the short context")
COUNTS = [
    column("num_targets", pa.int32(), "targets averaged over"),
    column("num_documents", pa.int32(), "documents they are from"),
]
COSTS = [
    column("token_forwards_per_target", pa.float64(), "tokens run through the network to choose the first k,"
           " of one far context"),
    column("backward_tokens_per_target", pa.float64(), "tokens that backward passes run through"),
]
JUDGE = column("judge", pa.string(), "the model whose losses and divergences these are: one of --judge-with,"
               " or one that the tokens were chosen with; null in the oldest results, which have the latter"
               " only", nullable=True)
SHORT_DIVERGENCE = column("short_context_divergence", pa.float32(), "KL(p(.|long) || p(.|short context)),"
                          " nats: the gain that the long context is expected to have; it does not see the"
                          " target", nullable=True)
LOSS_COLUMNS = [
    column("short_context_loss", pa.float32(), "loss(t | the short_context_length tokens before t), nats"),
    column("long_context_loss", pa.float32(), "loss(t | everything before t in its chunk), nats"),
]
SYNTHETIC_COLUMNS = [
    column("task", pa.string(), "the synthetic task, a name of pipeline/synthetic/tasks.py"),
    column("positions", pa.string(), "the position scheme that the model was trained with"),
    column("seed", pa.int64(), "of the training run"),
    column("largest_train_size", pa.int32(), "of the training examples, in the task's own unit"),
    column("largest_train_sparsity", pa.int32(), "K_train: k was uniform on 1 to this; null where the task"
           " has none", nullable=True),
    column("is_learnt", pa.bool_(), "at least 99 % of responses were wholly right, over all training sizes;"
           " of signs: the excess loss that ends training was reached"),
    column("size", pa.int32(), "of the test examples, in the task's own unit"),
    column("sparsity", pa.int32(), "k of the test examples; null where the task has none", nullable=True),
]
FINDING_COLUMNS = [
    *SYNTHETIC_COLUMNS,
    column("example_index", pa.int32(), "which test example, from 0"),
    column("target_index", pa.int32(), "which token of the response, or which position ID, from 0"),
    column("num_far_tokens", pa.int32(), "tokens that a rule selects from"),
    column("num_dependencies", pa.int32(), "those of them that truly decide the target, at least 1"),
    column("long_context_loss", pa.float32(), "loss(t | everything before t), nats"),
    column("rule", pa.string(), "selection rule, a name of pipeline/measuring/rules.py"),
    column("intervention", pa.string(), "what stands where a token is left out: remove, substitute or"
           " background, as in influential_tokens; null of rules that it does not matter to", nullable=True),
    column("rank", pa.int32(), "1 for the token that the rule ranks first"),
    column("context_position", pa.int32(), "place of the selected token in the example"),
    column("context_token", pa.string(), "its name, as the task's docstring shows it"),
    column("is_dependency", pa.bool_(), "whether it is in the target's true dependency set"),
    column("effect", pa.float32(), "what leaving it out does, nats: to the loss (leave_one_out), or as the"
           " divergence that it makes (leave_one_out_divergence); null of other rules, and in older results",
           nullable=True),
]
SCHEMAS: dict[str, pa.Schema] = {
    "evaluation_documents": pa.schema([
        DOCUMENT,
        column("url", pa.string(), "where the text was found, if its source says so", nullable=True),
        column("token_ids", pa.list_(pa.int32()), "the document's tokens, without a final EOS"),
        column("num_tokens", pa.int32(), "length of token_ids"),
    ]),
    # What is planted in texts: the truth beside a data folder, not a stage's results.
    "needles": pa.schema([
        DOCUMENT,
        column("source_document_id", pa.string(), "the document that the haystack was cut from"),
        column("context_length", pa.int32(), "tokens of the document, its answer included"),
        column("depth", pa.float64(), "part of the haystack before the needle, as asked for; null for the"
               " control, which has none", nullable=True),
        column("needle_position", pa.int32(), "place of the needle's first token", nullable=True),
        column("num_needle_tokens", pa.int32(), "tokens of the needle; 0 for the control"),
        column("needle_answer_positions", pa.list_(pa.int32()),
               "places of the answer's tokens in the needle"),
        column("answer_position", pa.int32(), "place of the answer's first token at the document's end"),
        column("num_answer_tokens", pa.int32(), "tokens of the answer, the last of the document"),
        column("answer", pa.string(), "its text, without the space before it"),
    ]),
    "planted_signs": pa.schema([
        column("document_id", pa.string(), "first 16 hex digits of the SHA-256 of the document's tokens"),
        column("target_position", pa.int32(), "place of the answer"),
        column("num_planted", pa.int32(), "signs that decide the answer: its true dependency sparsity"),
        column("planted_positions", pa.list_(pa.int32()), "places of the signs, in order"),
        column("best_loss", pa.float64(), "-ln p(answer) by what its signs say, nats: a model's mean loss"
               " less the mean of this is its excess loss"),
    ]),
    "loss_differences": pa.schema([
        *TARGET_COLUMNS,
        column("target_token_id", pa.int32(), "vocabulary ID of the predicted token"),
        column("num_long_context_tokens", pa.int32(), "tokens before the target in its chunk"),
        *LOSS_COLUMNS,
        column("loss_difference", pa.float32(), "short_context_loss - long_context_loss, nats; positive = the"
               " long context helps"),
        column("windowed_short_context_loss", pa.float32(), "loss(t | the short context as LongPPL's code"
               " approximates it), nats: one window shared by windowed_stride targets, which see"
               " short_context_length to short_context_length + windowed_stride - 1 tokens, position IDs"
               " from 0 in each; null where not asked for", nullable=True),
        SHORT_DIVERGENCE,
        column("foreign_context_loss", pa.float32(), "loss(t | another document's tokens as the far context,"
               " and the short one), nats", nullable=True),
        column("specific_gain", pa.float32(), "foreign_context_loss - long_context_loss, nats: what only this"
               " document's far tokens give", nullable=True),
        column("foreign_context_divergence", pa.float32(), "KL(p(.|long) || p(.|foreign far context, short"
               " context)), nats: the specific gain that is expected", nullable=True),
        column("reference_divergence", pa.float32(), "KL(p_ref(.|long) || p(.|long)), p_ref of"
               " --reference-model, nats; null where not asked for", nullable=True),
        column("length_harm", pa.float32(), "KL(p(.|last w tokens) || p(.|foreign far tokens, last w"
               " tokens)), nats, w of --near-context-length: what length alone does, mean over foreign"
               " documents; null where not asked for", nullable=True),
        column("length_harm_of_backgrounds", pa.list_(pa.float32()), "the same of each foreign document",
               nullable=True),
    ]),
    "influential_tokens": pa.schema([
        *TARGET_COLUMNS,
        *SELECTION_COLUMNS,
        column("rank", pa.int32(), "order of selection: 1 is taken first, S_k is ranks 1 to k"),
        column("context_position", pa.int32(), "place of the selected token, in tokens of the document"),
        column("distance", pa.int32(), "target_position - context_position"),
        column("context_token_id", pa.int32(), "vocabulary ID of the selected token (of the other document's,"
               " for the null)"),
        column("influence", pa.float32(), "loss(t | long without the token) - loss(t | long), nats, whatever"
               " the rule; positive = the token helps; null where it was not measured: the run has neither of"
               " the rules leave_one_out and leave_one_out_divergence. Under the interventions 'substitute'"
               " and 'background' (see `settings`) the token is replaced, not removed", nullable=True),
    ]),
    "influences": pa.schema([
        *TARGET_COLUMNS,
        SELECTION_COLUMNS[1],
        column("influences", pa.list_(pa.float32()), "influence of every far-context token, nats; entry i is"
               " the token at chunk start + i. No such rows where the run has neither of the rules"
               " leave_one_out and leave_one_out_divergence"),
    ]),
    "attention_heads": pa.schema([
        column("head_index", pa.int32(), "the head, of all layers one after another, from 0"),
        column("loss_weight", pa.float64(), "its weight in the rule learned_attention, fitted to influences"
               " on training tokens; only proportions matter"),
        column("divergence_weight", pa.float64(), "its weight in the rule learned_attention_divergence,"
               " fitted to divergences"),
    ]),
    "sparse_context_losses": pa.schema([
        *TARGET_COLUMNS,
        *SELECTION_COLUMNS,
        JUDGE,
        K,
        *LOSS_COLUMNS,
        column("sparse_context_loss", pa.float32(), "loss(t | short context and S_k only), nats; under the"
               " intervention 'background' a foreign document's tokens are the rest of the far context"),
        SHORT_DIVERGENCE,
        column("sparse_context_divergence", pa.float32(), "KL(p(.|long) || p(.|short context and S_k)), nats:"
               " what k tokens leave missing", nullable=True),
        column("background_loss", pa.float32(), "loss(t | a foreign far context, short context), nats, what"
               " S_k is added to under the intervention 'background'; null under another", nullable=True),
        column("background_divergence", pa.float32(), "KL(p(.|long) || p(.|foreign far context, short"
               " context)), nats; null as background_loss", nullable=True),
    ]),
    "dependency_sparsity": pa.schema([
        *TARGET_COLUMNS,
        SELECTION_COLUMNS[0],
        JUDGE,
        column("criterion", pa.string(), "what k* is of, 'loss' or 'divergence'; null in the oldest results:"
               " the loss", nullable=True),
        column("loss_difference", pa.float32(), "short_context_loss - long_context_loss, nats"),
        column("gain", pa.float32(), "what is to be recovered, nats: loss_difference or"
               " short_context_divergence by the criterion; under the intervention 'background'"
               " background_loss - long_context_loss or background_divergence; null in the oldest results",
               nullable=True),
        column("mean_log2_k", pa.float32(), "how many tokens it takes, in doublings: the mean over thresholds"
               " in (0, 1) of log2 of the least k that brings back so much of the gain, by straight lines in"
               " log2 k between the studied k; 0 where one token does everything, log2 of the number of far"
               " tokens where all are needed; mean over backgrounds; null where the gain is too small",
               nullable=True),
        column("mean_log2_k_of_backgrounds", pa.list_(pa.float32()), "the same in each background, whose"
               " spread is the noise of one; null of one without a gain", nullable=True),
        column("dependency_sparsity", pa.int32(), "k*: the least studied k recovering the recovery fraction"
               " of the gain; null where the gain is below the minimum, or no studied k reaches it",
               nullable=True),
        column("half_sparsity", pa.int32(), "the least studied k recovering half of the gain; null likewise",
               nullable=True),
        column("is_censored", pa.bool_(), "the long context helps enough, but no studied k reaches k*"),
        column("minimum_context_length", pa.int32(), "least number of nearest tokens, those of the short"
               " context among them, that recovers the recovery fraction of the gain (Vakilian et al. 2025):"
               " short_context_length and k* of the rule nearest, by the same criterion, on its grid of"
               " powers of two; the same for all rules of a target; null where nearest was not run, the gain"
               " is below the minimum, or the grid does not reach it", nullable=True),
    ]),
    # What the analysis makes of results and writes beside its figures: one file each.
    "methods": pa.schema([
        column("model", pa.string(), "the model that chose the tokens"),
        SELECTION_COLUMNS[0],
        column("sees", pa.string(), "of the target: 'answer', 'prediction', 'attention' or 'nothing'"),
        column("intervention", pa.string(), "what stands where a token is left out"),
        column("judge", pa.string(), "who tried the tokens: 'the same model' or 'another seed'"),
        K,
        *COUNTS,
        *with_interval("loss_gain", "what is to be recovered, by the losses, nats"),
        *with_interval("loss_effect", "what k tokens recover of it beyond the null; of rules that fit neither"
                       " answer nor prediction what they recover; nats"),
        *with_interval("divergence_gain", "what is to be recovered, by the divergence, nats"),
        *with_interval("divergence_effect", "the same effect by the divergence, nats"),
        *with_interval("behind_first", "what the first method is worth beyond this one by the divergence,"
                       " target by target, nats; the first is that of the largest divergence_effect at k = 4"
                       " under the same intervention"),
        *with_interval("found_dependencies", "share of the true dependencies of synthetic examples among the"
                       " first as many tokens; NaN where not measured; its interval is over examples"),
        *with_interval("found_signs", "share of the planted signs among the first as many tokens; NaN"
                       " likewise"),
        *COSTS,
        column("seconds_per_target", pa.float64(), "of the choice, as timed; NaN where not timed"),
    ]),
    "measures": pa.schema([
        SELECTION_COLUMNS[0],
        column("intervention", pa.string(), "what stands where a token is left out"),
        column("judge", pa.string(), "'the same model' as chose the tokens, or 'another seed'"),
        column("criterion", pa.string(), "'loss' or 'divergence', by which it is counted"),
        *COUNTS,
        *with_interval("gain", "what is to be recovered on the real text, nats"),
        *with_interval("excess", "what k tokens recover of it beyond the null, nats"),
        *with_interval("foreign_excess", "the same where the far context is another document's, nats"),
        *with_interval("found", "share of the planted signs among the first as many tokens"),
        *with_interval("right_sparsity", "share of the planted answers whose k* is the number of signs"),
        *with_interval("agreement", "Spearman's rank correlation of two seeds' k* on the real text"),
        column("num_agreement_targets", pa.float64(), "targets that agreement is of", nullable=True),
        column("censored", pa.float64(), "share of their k* that no studied k reaches", nullable=True),
        column("finds_nothing", pa.bool_(), "the interval of foreign_excess holds 0"),
        column("agrees", pa.bool_(), "the interval of agreement lies above 0"),
        column("helps", pa.bool_(), "the interval of excess lies above 0"),
        column("documents_of_the_old", pa.float64(), "documents that leave_one_out, by the loss of the model"
               " that chose, needs for an interval of excess as narrow"),
        COSTS[0],
    ]),
    "outcome_targets": pa.schema([
        column("measured", pa.string(), "what of each model: 'long_context_loss', or 'length_harm', whose"
               " mean_log2_k and D(0) are within its last tokens; nats"),
        column("document_id", pa.string(), "the text"),
        column("target_position", pa.int32(), "the target's place in it"),
        column("source", pa.string(), "'C4' or 'Wikipedia'"),
        column("follows", pa.string(), "what the target stands after, as in token_categories"),
        column("position", pa.int32(), "tokens before it in the long context"),
        column("log_token_count", pa.float32(), "natural log of its token's count in the training text + 1"),
        column("divergence", pa.float32(), "D(0), what the far context is worth, mean of the judges, nats"),
        column("least_divergence", pa.float32(), "the least of theirs"),
        column("gain", pa.float32(), "the judges' mean loss_difference, nats"),
        column("difficulty", pa.float32(), "the judges' mean long_context_loss, nats"),
        column("mean_log2_k", pa.list_(pa.float32()), "of each judge; NaN where there is too little to bring"
               " back"),
        column("log2_half_sparsity", pa.list_(pa.float32()), "log2 of half_sparsity, likewise"),
        column("mean_log2_k_by_loss", pa.list_(pa.float32()), "mean_log2_k by the loss, likewise"),
        column("short_trained", pa.list_(pa.float32()), "what is measured, of each short-trained seed"),
        column("long_trained", pa.list_(pa.float32()), "the same of the long-trained seeds"),
        column("placebo", pa.float32(), "the same of the long-trained model in the place of the former"),
    ]),
    "outcomes": pa.schema([
        column("outcome", pa.string(), "'gap', L_short - L_long under the long context, nats; 'share of the"
               " stake', the same as a share of the judges' D(0); 'harm of length', of length_harm, nats"),
        column("variant", pa.string(), "'as planned', which decides, or what is otherwise than planned"),
        column("compared", pa.string(), "with the long-trained: 'short-trained', or 'placebo', a long-trained"
               " model in their place"),
        column("estimator", pa.string(), "'least squares', or 'other judge as instrument'"),
        column("num_targets", pa.int32(), "targets"),
        column("num_documents", pa.int32(), "texts they are from"),
        column("num_left_out", pa.int32(), "targets with too little to bring back, by D(0) of either judge"),
        column("slope", pa.float64(), "of the outcome, a doubling of the tokens needed (mean_log2_k)"),
        column("slope_low", pa.float64(), "lower end of its 95 % interval over texts and seeds"),
        column("slope_high", pa.float64(), "upper end of it"),
        column("text_error", pa.float64(), "the part of its standard error that texts make"),
        column("seed_error", pa.float64(), "the part that seeds make beyond that"),
        column("degrees_of_freedom", pa.float64(), "of its interval"),
        column("p_value", pa.float64(), "two-sided, of a slope of 0"),
        column("holm_p_value", pa.float64(), "the same for the three outcomes together; NaN of other rows"),
        column("smallest_effect", pa.float64(), "of interest, written down before, in the slope's unit"),
        column("pearson", pa.float64(), "correlation of two judges' mean_log2_k"),
        column("spearman", pa.float64(), "the same of their ranks"),
        column("pair_slopes", pa.list_(pa.float64()), "slope of each pair of seeds, by the first role's"),
        column("decision", pa.string(), "of all rows together: 'support', 'refuted at this size' or 'open'"),
    ]),
    "chosen_alone": pa.schema([
        column("model", pa.string(), "the model's name; others chose the tokens"),
        column("positions", pa.string(), "'original', or 'compact': closed up"),
        column("k", pa.int32(), "tokens beside the short context, and nothing else"),
        *COUNTS,
        column("short_loss", pa.float64(), "loss with the short context alone, nats"),
        column("long_loss", pa.float64(), "loss with the long context, nats"),
        *with_interval("gain", "short_loss - long_loss, nats"),
        *with_interval("loss", "with k tokens, nats; its interval is of the difference from short_loss"),
        *with_interval("less_than_short", "short_loss - loss, nats"),
        *with_interval("null_less_than_short", "the same with another document's tokens, where there is"
                       " such a null, nats"),
        *with_interval("less_than_nearest", "loss with the k nearest tokens - loss, where these were tried,"
                       " nats"),
        *with_interval("less_than_long", "long_loss - loss, nats: above 0 where k tokens beat all of them"),
    ]),
    "needed_context": pa.schema([
        MODEL,
        column("source", pa.string(), "of the documents: 'all', or a site; 'other sources' have few each"),
        column("criterion", pa.string(), "'loss' or 'divergence', by which nats are counted"),
        column("context_length", pa.int32(), "w: the nearest tokens that are kept"),
        *COUNTS,
        *with_interval("lost", "what w tokens give less than the longest context measured, nats"),
        *with_interval("lost_share", "the same as a share of what the shortest one gives less; NaN where the"
                       " longest is not clearly worth more than that"),
        *(
            name
            for percent in (90, 95, 99)
            for name in with_interval(f"window_{percent}", f"w that keeps {percent} % of that worth, between"
                                      " measured w by a straight line in log2 w, the same in all rows of a"
                                      " model, source and criterion; NaN likewise")
        ),
    ]),
    "cache_policies": pa.schema([
        MODEL,
        SELECTION_COLUMNS[0],
        column("is_null", pa.bool_(), "the tokens are another document's, at the places that the same rule"
               " chooses there"),
        column("k", pa.int32(), "the budget: far tokens that are kept beside the short context"),
        *COUNTS,
        *with_interval("divergence_kept", "share of the far context's worth that is kept, by the divergence:"
                       " 1 - sum of D(k) / sum of D(0)"),
        *with_interval("loss_kept", "the same by the loss; NaN where the far context is not clearly worth"
                       " anything"),
        *with_interval("recall", "of the tokens with which leave_one_out_divergence brings half of the"
                       " prediction back, the share that is kept; NaN where that was not measured"),
        column("token_forwards_per_target", pa.float64(), "what the choice costs, tokens run through the"
               " network; that of the policies is the pass that a cache makes anyway"),
    ]),
    "document_scores": pa.schema([
        DOCUMENT,
        MODEL,
        column("num_targets", pa.int32(), "targets that the scores are means over"),
        column("num_tokens", pa.int32(), "tokens of the document"),
        column("stake", pa.float64(), "mean specific_gain, nats: what the own far context is worth more than"
               " a foreign one"),
        column("gain", pa.float64(), "mean loss_difference, nats"),
        column("long_filter", pa.float64(), "mean short_context_divergence, nats: the score of LongFilter"
               " (arXiv 2510.25804)"),
        column("prolong_difference", pa.float64(), "(PPL(short) - PPL(long)) / PPL(short), PPL being exp of a"
               " mean loss: the dependency strength of ProLong (arXiv 2405.17915), the short context in place"
               " of a segment alone, without its weights of distance and specificity; it ranks as gain does"),
        column("key_token_share", pa.float64(), "share of targets that are key tokens of LongPPL"),
        column("mean_log2_k", pa.float64(), "mean over the targets that have one; NaN where there is none"),
        column("mean_distance", pa.float64(), "tokens between a target and those that bring half of its"
               " prediction back, mean; NaN likewise"),
        column("gzip_ratio", pa.float64(), "compressed over plain bytes of the text"),
    ]),
    "selection_rules": pa.schema([
        MODEL,
        SELECTION_COLUMNS[0],
        column("sees_answer", pa.bool_(), "the rule looks at the target's loss, so it needs the null"),
        K,
        *COUNTS,
        *with_interval("loss_difference", "mean short_context_loss - long_context_loss, nats"),
        *with_interval("recovered_loss", "mean short_context_loss - sparse_context_loss, nats"),
        *with_interval("null_recovered_loss", "the same for the null, nats"),
        *with_interval("excess_loss", "recovered_loss - null_recovered_loss, paired, nats"),
        *COSTS,
    ]),
    "token_categories": pa.schema([
        *TARGET_COLUMNS,
        column("word_part", pa.string(), "'word start', 'continuation' or 'no word'"),
        column("word_kind", pa.string(), "of the word that the token is part of: 'number', 'function word',"
               " 'capitalized name' or 'content word'; else 'punctuation' or 'white space'. Rules:"
               " analysis/tokens/kinds.py"),
        column("repetition", pa.string(), "'repeated trigram', 'repeated bigram' or 'repeated token' of the"
               " far context, 'short context only', 'new'; the first that fits, by vocabulary ID within the"
               " chunk"),
        column("follows", pa.string(), "'a repeated bigram' where the two tokens before the target stand in"
               " the far context, in that order; else 'none'. It does not look at the target's token"),
        column("part_of_speech", pa.string(), "by HanTa, in classes of analysis/tokens/kinds.py; null where"
               " it is not installed", nullable=True),
    ]),
    "length_losses": pa.schema([
        *TARGET_COLUMNS[:2],
        column("context_length", pa.int32(), "tokens of context, exactly, for every target"),
        column("num_targets", pa.int32(), "targets of the chunk"),
        column("mean_loss", pa.float32(), "mean loss over these targets, nats"),
        column("mean_divergence", pa.float32(), "mean over these targets of KL(p(.|long) || p(.|context of"
               " this length)), nats", nullable=True),
    ]),
    "found_dependencies": pa.schema(FINDING_COLUMNS),
    "found_id_dependencies": pa.schema(FINDING_COLUMNS),
    "sparse_functional_attention": pa.schema([
        column("seed", pa.int32(), "of the fit, its training and its test sequences"),
        column("sparsity", pa.int32(), "k: planted tokens, and tokens of a subset attended to"),
        column("position_law", pa.string(), "of the planted tokens, as pipeline/synthetic/planted_class.py"),
        column("position_scheme", pa.string(), "contiguous, or coupled: both halves count from 0"),
        column("key_reach", pa.int32(), "keys are 0 where position IDs differ by this or more"),
        column("local_length", pa.int32(), "L_local of the law, tokens; the uniform law has none"),
        column("train_context_length", pa.int32(), "L: training sequences have L/2 to L tokens"),
        column("training_step", pa.int32(), "steps trained when this was measured"),
        column("test_length", pa.int32(), "tokens of the test sequences"),
        column("num_sequences", pa.int32(), "test sequences"),
        column("squared_error", pa.float64(), "mean of (h(X) - y)^2, labels -1 and 1; saying 0 costs 1"),
        column("error_rate", pa.float64(), "fraction of sequences where h(X) has not the label's sign"),
    ]),
    "synthetic_accuracy": pa.schema([
        *SYNTHETIC_COLUMNS,
        column("num_tokens", pa.int32(), "tokens of a test example, prompt and response"),
        column("num_examples", pa.int32(), "test examples"),
        column("exact_match", pa.float64(), "share of responses with every token right and, where IDs are"
               " predicted, every ID"),
        column("exact_match_low", pa.float64(), "lower end of its 95 % Wilson interval over examples"),
        column("exact_match_high", pa.float64(), "upper end of it"),
        column("token_accuracy", pa.float64(), "share of response tokens that are right, generated freely"),
        column("position_id_accuracy", pa.float64(), "share of the response's position IDs that are right;"
               " null where they are given", nullable=True),
        column("excess_loss", pa.float64(), "mean loss of the answer beyond the best possible one, nats: KL"
               " from what the signs say to what the model says; null where the answer is certain",
               nullable=True),
        column("excess_loss_error", pa.float64(), "its standard error over examples", nullable=True),
        column("attention_scaling", pa.string(), "of the model, in training and here; null as above",
               nullable=True),
        column("best_loss", pa.float64(), "the best possible mean loss, nats, exactly", nullable=True),
        column("sign_attention", pa.list_(pa.float32()), "share of the question's attention that is on the"
               " signs, mean over the first 64 examples: of each head, layer by layer", nullable=True),
    ]),
    "synthetic_training": pa.schema([
        column("step", pa.int32(), "finished optimizer steps"),
        column("loss", pa.float64(), "mean loss of the response's tokens, nats"),
        column("position_id_loss", pa.float64(), "mean cross-entropy of the response's position IDs, nats;"
               " null where they are not predicted", nullable=True),
        column("learning_rate", pa.float64(), "of the step"),
        column("gradient_norm", pa.float64(), "before clipping"),
        column("exact_match", pa.float64(), "share of responses, as in training, that are wholly right; null"
               " at steps where it was not measured", nullable=True),
        column("excess_loss", pa.float64(), "as of synthetic_accuracy, in distribution, nats; null where it"
               " was not measured", nullable=True),
    ]),
}
# fmt: on


def results_page(page: str) -> str:
    """The page with new tables, one an artefact: a row a column, or a number with its interval."""
    sections = [page.partition("\n\n## ")[0]]
    for artefact, schema in SCHEMAS.items():
        sections.append(f"\n## {artefact}\n")
        if artefact == "found_id_dependencies":
            sections.append("The columns of `found_dependencies`; of position IDs.")
            continue
        sections += ["| column | type | meaning |", "|---|---|---|"]
        meanings = {field.name: field.metadata[b"meaning"].decode().replace("|", r"\|") for field in schema}
        for field in schema:
            if meanings[field.name] in _ENDS.values():
                continue
            ends = " (`_low`, `_high`)" if meanings.get(f"{field.name}_low") == _ENDS["low"] else ""
            kind = f"{field.type}{', may be null' if field.nullable else ''}"
            sections.append(f"| `{field.name}`{ends} | {kind} | {meanings[field.name]} |")
    return "\n".join([*sections, ""])


if __name__ == "__main__":
    path = Path(__file__).resolve().parents[1] / "RESULTS.md"
    path.write_text(results_page(path.read_text(encoding="utf-8")), encoding="utf-8")
