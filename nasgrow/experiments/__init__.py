"""Experiments: searches, confirmations, transfers to other sizes, families, maps, slope rules, forecasts."""
