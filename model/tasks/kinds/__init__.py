"""The kinds of tasks, a file each: how examples are read, what the head says, how it is trained, decoded and scored."""
