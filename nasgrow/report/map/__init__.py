"""The report of a map: where growth pays over final shapes and budgets."""
