"""Rules run over a program give its sketches."""
