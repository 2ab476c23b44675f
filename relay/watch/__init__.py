"""Watches a running process: its dependencies, its event loop, its backlogs; and reports what it sees."""
