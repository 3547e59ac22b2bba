"""A family of models that share a prefix: loss against size, and what sharing saves."""
