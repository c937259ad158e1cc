"""Proofs that a µGraph computes its specification, and the µGraphs of another system to try them on."""
