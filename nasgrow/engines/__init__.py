"""Engines: where the runs of a study execute."""
