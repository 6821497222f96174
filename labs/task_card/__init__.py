"""A look at the data of a task: classes, lengths, texts that splits share, and shortcuts."""
