"""The superoptimizer: µGraphs, how they are found, proven equal to their specification, and lowered to programs."""
