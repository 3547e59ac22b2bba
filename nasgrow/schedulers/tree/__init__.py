"""Tree search: trials that share prefixes, of which the most promising per FLOP trains on from rung to rung.

``features`` turns points into rows of a matrix, ``model`` predicts final losses from those of other points
and from losses at rungs, ``search`` is the scheduler.
"""

from nasgrow.schedulers.tree.search import TreeScheduler

__all__ = ["TreeScheduler"]
