"""Stage finetune: config, stage, starting checkpoint and training."""
