"""A question a file: its table and its figure; and the pages that are filled with them."""
