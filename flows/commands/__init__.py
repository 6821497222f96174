"""One module for each verb, or for a few of a kind; the table is in `flows.cli`."""
