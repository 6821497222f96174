"""Our own page: the runs, their graphs, what they made, and how the servers are."""
