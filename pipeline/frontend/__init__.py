"""Models and built-in workloads into graphs."""
