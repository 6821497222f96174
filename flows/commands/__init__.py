"""Commands of `cloze`, several per module; `cloze.flows.cli` has their table."""
