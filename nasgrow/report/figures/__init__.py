"""Figures of a report: one function for each, from records to a figure."""
