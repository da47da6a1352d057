"""Columns that several artefacts have alike."""

import pyarrow as pa


def column(name: str, arrow_type: pa.DataType, meaning: str, nullable: bool = False) -> pa.Field:
    """A column with its meaning, unit included."""
    return pa.field(name, arrow_type, nullable=nullable, metadata={"meaning": meaning})


TARGET_COLUMNS = [
    column("document_id", pa.string(), "the document: first 16 hex digits of the SHA-256 of its text"),
    column("chunk_index", pa.int32(), "which chunk of long_context_length tokens of the document, from 0"),
    column("target_position", pa.int32(), "place of the predicted token in the document, in tokens"),
]
SELECTION_COLUMNS = [
    column("rule", pa.string(), "selection rule, a name of pipeline/influence/rules.py"),
    column(
        "far_context",
        pa.string(),
        "'own', or 'other_document': the null, where the far context is another document's tokens"
        " at the same positions",
    ),
    column(
        "null_kind",
        pa.string(),
        "how the null's tokens are chosen: 'selection', within the other document's far context as within the"
        " own one, or 'mimicry', to reproduce the prediction from the own far context; null of the own far"
        " context, and in results of version 1: selection",
        nullable=True,
    ),
    column(
        "num_candidates",
        pa.int32(),
        "tokens that each step of the search tried, those that a screen by derivatives put first; null: all,"
        " or a rule that has no such steps",
        nullable=True,
    ),
]


def with_interval(name: str, meaning: str) -> list[pa.Field]:
    """A number and the ends of its interval."""
    return [
        column(name, pa.float64(), meaning),
        column(f"{name}_low", pa.float64(), "lower end of its 95 % interval over documents"),
        column(f"{name}_high", pa.float64(), "upper end of it; both are NaN for a single document"),
    ]


JUDGE = column(
    "judge",
    pa.string(),
    "the model whose losses and divergences these are: the one that the tokens were chosen with, or one of"
    " --judge-with; null in results of version 1, which have the former only",
    nullable=True,
)
SHORT_DIVERGENCE = column(
    "short_context_divergence",
    pa.float32(),
    "KL(p(.|long) || p(.|short context)), nats: the gain that the long context is expected to have; it does"
    " not see the target",
    nullable=True,
)
FURTHER_SPARSITY_COLUMNS = [
    column(
        "rationale_size",
        pa.int32(),
        "least number of the rule's first tokens, beside the short context, with which the most likely next"
        " token is that of the long context (Vafa et al. 2021), 0 where the short context suffices; of the"
        " rules greedy and greedy_divergence, null for others, and where the largest k does not reach it",
        nullable=True,
    ),
    column(
        "minimum_context_length",
        pa.int32(),
        "least number of nearest tokens, those of the short context among them, that recovers the recovery"
        " fraction of the gain (Vakilian et al. 2025): short_context_length and k* of the rule nearest, by"
        " the same criterion, on its grid of powers of two; the same for all rules of a target; null where"
        " nearest was not run, the gain is below the minimum, or the grid does not reach it",
        nullable=True,
    ),
]
LOSS_COLUMNS = [
    column("short_context_loss", pa.float32(), "loss(t | the short_context_length tokens before t), nats"),
    column("long_context_loss", pa.float32(), "loss(t | everything before t in its chunk), nats"),
]

HEAD_COLUMNS = [
    column("head_index", pa.int32(), "the head, of all layers one after another, from 0"),
    column(
        "loss_weight",
        pa.float64(),
        "its weight in the rule learned_attention, fitted to influences on training tokens; only proportions"
        " matter",
    ),
    column(
        "divergence_weight",
        pa.float64(),
        "its weight in the rule learned_attention_divergence, fitted to divergences",
    ),
]
SYNTHETIC_COLUMNS = [
    column("task", pa.string(), "the synthetic task, a name of pipeline/synthetic/tasks/registry.py"),
    column("positions", pa.string(), "the position scheme that the model was trained with"),
    column("seed", pa.int64(), "of the training run"),
    column("largest_train_size", pa.int32(), "of the training examples, in the task's own unit"),
    column(
        "largest_train_sparsity",
        pa.int32(),
        "K_train: k was uniform on 1 to this; null where the task has none",
        nullable=True,
    ),
    column("is_learnt", pa.bool_(), "at least 99 % of responses were wholly right, over all training sizes"),
    column("size", pa.int32(), "of the test examples, in the task's own unit"),
    column(
        "sparsity",
        pa.int32(),
        "k of the test examples; null where the task has none",
        nullable=True,
    ),
]

FINDING_COLUMNS = [
    *SYNTHETIC_COLUMNS,
    column("example_index", pa.int32(), "which test example, from 0"),
    column("target_index", pa.int32(), "which token of the response, or which position ID, from 0"),
    column("num_far_tokens", pa.int32(), "tokens that a rule selects from"),
    column("num_dependencies", pa.int32(), "those of them that truly decide the target, at least 1"),
    column("long_context_loss", pa.float32(), "loss(t | everything before t), nats"),
    column("rule", pa.string(), "selection rule, a name of pipeline/influence/rules.py"),
    column(
        "intervention",
        pa.string(),
        "what stands where a token is left out: remove, substitute or background, as in"
        " influential_tokens; null of rules that it does not matter to",
        nullable=True,
    ),
    column("rank", pa.int32(), "1 for the token that the rule ranks first"),
    column("context_position", pa.int32(), "place of the selected token in the example"),
    column("context_token", pa.string(), "its name, as the task's docstring shows it"),
    column("is_dependency", pa.bool_(), "whether it is in the target's true dependency set"),
    column(
        "effect",
        pa.float32(),
        "what leaving it out does, nats: to the loss (leave_one_out), or as the divergence that it makes"
        " (leave_one_out_divergence); null of other rules, and in older results",
        nullable=True,
    ),
]
TRAINING_COLUMNS = [
    column("step", pa.int32(), "finished optimizer steps"),
    column("loss", pa.float64(), "mean loss of the response's tokens, nats"),
    column(
        "position_id_loss",
        pa.float64(),
        "mean cross-entropy of the response's position IDs, nats; null where they are not predicted",
        nullable=True,
    ),
    column("learning_rate", pa.float64(), "of the step"),
    column("gradient_norm", pa.float64(), "before clipping"),
    column(
        "exact_match",
        pa.float64(),
        "share of responses, as in training, that are wholly right; null at steps where it was not measured",
        nullable=True,
    ),
]
