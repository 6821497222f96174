"""One folder a model family, one row a family in the table (`model.families.table`)."""
