"""What the analysis makes of results and writes beside its figures: one file each."""

import pyarrow as pa

from pipeline.results.schema_columns import SELECTION_COLUMNS, column, with_interval

DERIVED_SCHEMAS: dict[str, pa.Schema] = {
    "methods": pa.schema(
        [
            column("model", pa.string(), "the model that chose the tokens"),
            SELECTION_COLUMNS[0],
            column("sees", pa.string(), "of the target: 'answer', 'prediction', 'attention' or 'nothing'"),
            column("intervention", pa.string(), "what stands where a token is left out"),
            column("judge", pa.string(), "who tried the tokens: 'the same model' or 'another seed'"),
            column("k", pa.int32(), "number of influential tokens"),
            column("num_targets", pa.int32(), "targets of the text"),
            column("num_documents", pa.int32(), "documents they are from"),
            *with_interval("loss_gain", "what is to be recovered, by the losses, nats"),
            *with_interval(
                "loss_effect",
                "what k tokens recover of it beyond the null; of rules that fit neither answer nor prediction"
                " what they recover; nats",
            ),
            *with_interval("divergence_gain", "what is to be recovered, by the divergence, nats"),
            *with_interval("divergence_effect", "the same effect by the divergence, nats"),
            *with_interval(
                "behind_first",
                "what the first method is worth beyond this one by the divergence, target by target, nats;"
                " the first is that of the largest divergence_effect at k = 4 under the same intervention",
            ),
            *with_interval(
                "found_dependencies",
                "share of the true dependencies of synthetic examples among the first as many tokens; NaN"
                " where not measured; its interval is over examples",
            ),
            *with_interval(
                "found_signs", "share of the planted signs among the first as many tokens; NaN likewise"
            ),
            column("token_forwards_per_target", pa.float64(), "of the choice, for one far context"),
            column("backward_tokens_per_target", pa.float64(), "tokens that backward passes run through"),
            column("seconds_per_target", pa.float64(), "of the choice, as timed; NaN where not timed"),
        ]
    ),
    "measures": pa.schema(
        [
            SELECTION_COLUMNS[0],
            column("intervention", pa.string(), "what stands where a token is left out"),
            column("judge", pa.string(), "'the same model' as chose the tokens, or 'another seed'"),
            column("criterion", pa.string(), "'loss' or 'divergence', by which it is counted"),
            column("num_targets", pa.int32(), "targets of the real text"),
            column("num_documents", pa.int32(), "documents they are from"),
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
            column(
                "documents_of_the_old",
                pa.float64(),
                "documents that leave_one_out, by the loss of the model that chose, needs for an interval of"
                " excess as narrow",
            ),
            column("token_forwards_per_target", pa.float64(), "what the choice costs, for one far context"),
        ]
    ),
    "planted_lengths": pa.schema(
        [
            column("model", pa.string(), "the model's name"),
            column("num_planted", pa.int32(), "planted tokens that decide the answer"),
            column("test_length", pa.int32(), "tokens of the document; the shortest is the trained length"),
            column("num_targets", pa.int32(), "answers"),
            column("num_documents", pa.int32(), "documents they are from, one a text"),
            *with_interval("loss", "mean loss of the answer in the whole document, nats"),
            *with_interval("right_share", "share of answers given more than half of the probability"),
        ]
    ),
    "selection_rules": pa.schema(
        [
            column("model", pa.string(), "the model's name"),
            SELECTION_COLUMNS[0],
            column("sees_answer", pa.bool_(), "the rule looks at the target's loss, so it needs the null"),
            column("k", pa.int32(), "number of influential tokens added to the short context"),
            column("num_targets", pa.int32(), "targets averaged over"),
            column("num_documents", pa.int32(), "documents they are from"),
            *with_interval("loss_difference", "mean short_context_loss - long_context_loss, nats"),
            *with_interval("recovered_loss", "mean short_context_loss - sparse_context_loss, nats"),
            *with_interval("null_recovered_loss", "the same for the null, nats"),
            *with_interval("excess_loss", "recovered_loss - null_recovered_loss, paired, nats"),
            *with_interval(
                "excess_fraction",
                "excess_loss / loss_difference, a ratio of sums; NaN where the latter's interval reaches 0",
            ),
            column(
                "token_forwards_per_target",
                pa.float64(),
                "tokens run through the network to choose the first k, own far context, a target",
            ),
            column("backward_tokens_per_target", pa.float64(), "tokens that backward passes run through"),
        ]
    ),
}
