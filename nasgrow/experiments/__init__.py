"""What is run around a search: confirmations, transfers to other sizes, families, slope rules."""
