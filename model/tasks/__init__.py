"""Fine-tuning: a pretrained encoder and a task's labelled set -> a model for the task, its scores and its predictions."""
