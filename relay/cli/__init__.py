"""The command line, one module per noun."""
