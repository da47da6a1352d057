"""What is planted in texts: the truth beside a data folder, not a stage's results."""

import pyarrow as pa

from pipeline.results.schema_columns import column

PLANTED_SCHEMAS: dict[str, pa.Schema] = {
    "needles": pa.schema(
        [
            column("document_id", pa.string(), "first 16 hex digits of the SHA-256 of the document's text"),
            column("source_document_id", pa.string(), "the document that the haystack was cut from"),
            column("context_length", pa.int32(), "tokens of the document, its answer included"),
            column(
                "depth",
                pa.float64(),
                "part of the haystack before the needle, as asked for; null for the control, which has none",
                nullable=True,
            ),
            column("needle_position", pa.int32(), "place of the needle's first token", nullable=True),
            column("num_needle_tokens", pa.int32(), "tokens of the needle; 0 for the control"),
            column(
                "needle_answer_positions", pa.list_(pa.int32()), "places of the answer's tokens in the needle"
            ),
            column("answer_position", pa.int32(), "place of the answer's first token at the document's end"),
            column("num_answer_tokens", pa.int32(), "tokens of the answer, the last of the document"),
            column("answer", pa.string(), "its text, without the space before it"),
        ]
    ),
    "planted_signs": pa.schema(
        [
            column("document_id", pa.string(), "first 16 hex digits of the SHA-256 of the document's tokens"),
            column("target_position", pa.int32(), "place of the answer"),
            column("num_planted", pa.int32(), "signs that decide the answer: its true dependency sparsity"),
            column("planted_positions", pa.list_(pa.int32()), "places of the signs, in order"),
        ]
    ),
}
