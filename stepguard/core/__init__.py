"""The nouns of the project, and its words; whoever knows these can read the rest."""
