"""Incidents of a running relay: observed in rows that exist anyway, kept in the state, and published."""
