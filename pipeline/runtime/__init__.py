"""The finished module: artifact, session and memory."""
