"""Strategies, cost models, features and the task scheduler: which candidates are measured next."""
