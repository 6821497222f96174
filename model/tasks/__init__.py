"""Fine-tuning: a pretrained encoder and a labelled set -> a classifier, its score and its predictions."""
