"""One text explained: what each of its tokens needs of those before it."""
