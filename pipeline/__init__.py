"""From text to sparsity-vs-generalization results: one stage a file, one concern a folder."""
