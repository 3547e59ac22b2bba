"""Studies: the study file, baselines, trial records, Optuna storage and costs."""
