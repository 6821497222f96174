"""Model families: one folder and one row of `cloze.model.families.registry` per family."""
