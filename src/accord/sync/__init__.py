"""Ways to wait for each other."""
