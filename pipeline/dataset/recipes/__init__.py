"""The papers' ways of making examples: each a documented function that gives its values."""
