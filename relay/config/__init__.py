"""Settings and the receivers file: what they may contain, and how they are read and checked."""
