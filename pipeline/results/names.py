"""Words that results tell and several rooms know."""

OWN, OTHER_DOCUMENT = "own", "other_document"
"""Far contexts: the chunk's own; and of its null, another document's tokens at the same positions."""
SELECTION, MIMICRY = "selection", "mimicry"
"""Kinds of null: the rule chooses within the other document's far context as it does within the own one; or
it chooses that document's tokens to reproduce the prediction from the own far context."""
LOSS, DIVERGENCE = "loss", "divergence"
"""Criteria of k*."""
EARLIER_RULES = {"divergence": "leave_one_out_divergence"}
"""Selection rules of schema version 1 -> their names now, by which their rows are read."""
ATTENTION_HEADS = "attention_heads"
"""The artefact, and what it is filed under, of the weights that rules learned_attention* need;
influential_tokens fits them before it measures."""
