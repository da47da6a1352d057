"""From Parquet to figures: statistics, drawing and thin notebooks. Reads results, never models."""
