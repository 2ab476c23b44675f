"""Logs, metrics and Sentry."""
