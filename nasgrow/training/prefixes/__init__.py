"""The prefix cache: what several runs have in common at their beginning, trained once.

``keys`` names the states that a run passes by all that determines them, ``store`` keeps states under such
names, ``follow`` lets a run go on from the latest that is kept, and keep what others may need.
"""

from nasgrow.training.prefixes.keys import Fork, forks
from nasgrow.training.prefixes.reuse import PrefixCache, SharedPrefix, following, open_prefix_cache
from nasgrow.training.prefixes.store import CachedState, StateStore

__all__ = [
    "CachedState",
    "Fork",
    "PrefixCache",
    "SharedPrefix",
    "StateStore",
    "following",
    "forks",
    "open_prefix_cache",
]
