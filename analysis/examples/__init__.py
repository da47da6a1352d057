"""Examples: a rule file of one's own."""
