"""Documents from a source, tokenizers, packed training shards, evaluation documents."""
