"""Model families: one module and one row of `cloze.model.families.registry` per family."""
