"""Executors: train jobs in local processes or on Ray, or simulate them."""
