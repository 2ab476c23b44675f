"""HTTP to the outside: transport and address guard."""
