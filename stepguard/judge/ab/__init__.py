"""Rules of A/B comparisons, pure: from pairs of launches to a verdict."""
