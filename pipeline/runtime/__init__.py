"""The finished module: artifact, session and memory."""

from pipeline.runtime.session import Session, load

__all__ = ["Session", "load"]
