"""The search for µGraphs: roles of axes, values, programs over them, their cost, and the budget."""
