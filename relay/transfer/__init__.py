"""Moves unfinished work and settings from one relay to another: `relay export` and `relay import`."""
