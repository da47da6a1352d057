"""Kinds of tokens, places of influential ones, key tokens, needles."""
