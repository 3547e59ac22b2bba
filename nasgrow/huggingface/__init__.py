"""Hugging Face checkpoints in and out, without the ``transformers`` library."""
