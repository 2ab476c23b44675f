"""Rebuilds lost state from the log."""
