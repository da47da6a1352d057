"""Loss under a chosen context, the influence of a token, selection rules, dependency sparsity."""
