"""Search: a space of schedules, sampled by Optuna, trained under one budget, beside fair baselines."""
