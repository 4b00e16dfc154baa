"""Programs for the benches that the corpus does not have, lowered from shapes alone."""
