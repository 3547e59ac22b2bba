"""Training one run: a schedule, a seed and a budget, on data known by its fingerprint."""
