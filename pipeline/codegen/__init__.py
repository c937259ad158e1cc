"""Programs into machine code."""
