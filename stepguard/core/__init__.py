"""The nouns of the project. Whoever knows these can read the rest."""
