"""Tree search: among trials that share prefixes, train the most promising per FLOP from rung to rung.

``features`` encodes points as rows of a matrix. ``model`` predicts final losses from the final losses of
other points and from losses at rungs. ``search`` is the scheduler.
"""

from nasgrow.schedulers.tree.search import TreeScheduler

__all__ = ["TreeScheduler"]
