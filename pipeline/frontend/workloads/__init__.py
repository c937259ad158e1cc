"""Graphs that are built here: models, operator families, layers."""
