"""Rules that turn one program into sketches."""
