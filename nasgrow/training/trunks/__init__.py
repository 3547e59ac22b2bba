"""Trunks: training prefixes that several runs share, each trained once.

``keys`` names the states that a run passes by all that determines them, ``store`` keeps states under such
names, ``follow`` lets a run go on from the latest that is kept, and keep what others may need. ``remote``
keeps states behind a URL, ``mirror`` is a store with such a second tier.
"""

from nasgrow.training.trunks.follow import Trunk, Trunks, following
from nasgrow.training.trunks.keys import Fork, forks
from nasgrow.training.trunks.mirror import Mirrored
from nasgrow.training.trunks.remote import Remote
from nasgrow.training.trunks.store import Entry, Store

__all__ = ["Entry", "Fork", "Mirrored", "Remote", "Store", "Trunk", "Trunks", "following", "forks"]
