"""What tests that run a study share with those of studies."""

from tests.study.conftest import place

__all__ = ["place"]
