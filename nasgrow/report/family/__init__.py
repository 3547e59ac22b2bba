"""A family of models from one trunk: loss against size, and what sharing saves."""
