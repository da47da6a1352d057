"""Other people's methods to find the tokens that matter: a file each, by a function named as the rule."""
