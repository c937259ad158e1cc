"""Other runtimes, for the comparison only: one protocol, one file per kind."""
