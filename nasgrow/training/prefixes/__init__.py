"""The prefix cache: what several runs have in common at their beginning, trained once.

``keys`` names the states that a run passes by all that determines them, ``store`` keeps states under such
names, ``follow`` lets a run go on from the latest that is kept, and keep what others may need.
"""

from nasgrow.training.prefixes.follow import PrefixCache, SharedPrefix, following, open_prefix_cache
from nasgrow.training.prefixes.keys import Fork, forks
from nasgrow.training.prefixes.store import Entry, Store

__all__ = [
    "Entry",
    "Fork",
    "PrefixCache",
    "SharedPrefix",
    "Store",
    "following",
    "forks",
    "open_prefix_cache",
]
