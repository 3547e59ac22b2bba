"""What decides: schedulers suggest the next trial, and pause trials that do not look promising."""
