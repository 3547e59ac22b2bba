"""nasgrow: search for the best way to grow a transformer while it trains."""
