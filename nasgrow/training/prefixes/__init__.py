"""The prefix cache: if several runs begin with the same training, it is trained once.

``keys`` computes the key of a state from all that determines the state. ``store`` stores states by their
keys. ``reuse`` lets a run continue from the latest stored state, and store states that other runs may need.
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
