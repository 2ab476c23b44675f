"""What one relay hands over to another: `relay export` and `relay import`."""
