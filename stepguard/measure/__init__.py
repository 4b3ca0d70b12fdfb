"""A run of cases: launches, warm-up, blocks, A/B pairs, differences."""
