"""Several machines, through a scheduler."""
