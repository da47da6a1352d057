"""The explorer's page: one file to look at, and what it holds."""
