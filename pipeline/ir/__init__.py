"""The representations: expressions, loop nests, graphs; their text form, checks and reference interpreters."""
