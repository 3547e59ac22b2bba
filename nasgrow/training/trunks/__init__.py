"""Trunks: training prefixes that several runs share, each trained once.

``keys`` names the states that a run passes by all that determines them, ``store`` keeps states under such
names, ``follow`` lets a run go on from the latest that is kept, and keep what others may need.
"""

from nasgrow.training.trunks.follow import Trunk, Trunks, following, open_trunks
from nasgrow.training.trunks.keys import Fork, forks
from nasgrow.training.trunks.store import Entry, Store

__all__ = [
    "Entry",
    "Fork",
    "Store",
    "Trunk",
    "Trunks",
    "following",
    "forks",
    "open_trunks",
]
