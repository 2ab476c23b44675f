"""What watches over a running process: checks of what it stands on, and of itself."""
