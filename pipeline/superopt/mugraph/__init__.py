"""The µGraph as a value: structure, text, checks, shapes, interpreter, and the builder that writes one by hand."""
