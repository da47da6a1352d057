"""Whether models generalize where dependencies are sparse: k*, the gap, their regression, scale."""
