"""Model families: one folder and one row of `cloze.model.families.table` per family."""
