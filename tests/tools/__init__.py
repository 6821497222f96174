"""Tools of the developers: tests of what changed (reach.py), and mutants (mutants.py)."""
