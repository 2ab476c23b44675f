"""Replay and discard: sends failed or delivered messages through the failed stage again, or ends them for good."""
