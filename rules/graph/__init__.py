"""Rules that turn one graph into another."""
