"""The report of a map: at which final shapes and budgets growth pays."""
