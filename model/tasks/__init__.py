"""Fine-tuning and evaluation of a pretrained encoder on tasks with labelled data."""
