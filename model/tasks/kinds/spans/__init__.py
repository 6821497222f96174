"""The kind of task that answers a question by a part of a passage: windows on it, the answers found in them, the kind."""
