"""The report of a family of models that share a prefix: loss against size, and the compute saved."""
