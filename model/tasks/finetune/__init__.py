"""Stage finetune: config, the stage, what training starts from, and the training."""
