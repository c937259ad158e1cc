"""What a run prints and leaves behind, and how it compares with other runtimes."""
