"""Schedulers: they suggest the next trial, and pause trials that do not look promising."""
