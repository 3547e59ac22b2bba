"""The figures of reports: one function draws each figure from records."""
