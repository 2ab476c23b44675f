"""What assembles and runs a process: its parts, its HTTP server, the parent of several and its children."""
