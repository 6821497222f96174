"""Papers: tables of papers as runs, and GLUE's submission."""
