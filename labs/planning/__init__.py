"""Plans of large trainings: memory and hours on GPUs of a kind."""
