"""Finished research: a folder each with scripts, data and a page. See studies/README.md."""
