"""Training: the loop, its schedule, checkpoints, distribution over processes, logs."""
