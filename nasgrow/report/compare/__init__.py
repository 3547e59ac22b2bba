"""Several studies in one report: what may be compared, who is ahead, and what each cost."""
