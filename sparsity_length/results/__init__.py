"""Arrow schemas, atomic shards, provenance, completeness, intervals."""
