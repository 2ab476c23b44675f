"""What happened, to be searched: derived from the log, never waited for, and rebuilt from it."""
