"""Format durations for the terminal."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """Return a duration in seconds, minutes or hours; empty for None."""
    if seconds is None:
        return ""
    seconds = round(seconds)  # first, so that there are no 60 s
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 600:
        return f"{seconds / 60:.2g} min"
    return f"{seconds / 60:.0f} min" if round(seconds / 60) < 120 else f"{seconds / 3600:.1f} h"


def between(low: float, high: float) -> str:
    """Return two bounds of a duration in words: a range, ``about``, or ``at most`` from 0 seconds."""
    least, most = duration(low), duration(high)
    if least == most:
        return f"about {least}"
    return f"at most {most}" if least == duration(0) else f"{least} to {most}"
