"""Rebuilds from the log what the state has lost."""
