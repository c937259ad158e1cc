"""The finished module: artifact, session and memory."""

from pipeline.runtime.cuda_session import CudaSession
from pipeline.runtime.loading import load
from pipeline.runtime.session import Session

__all__ = ["CudaSession", "Session", "load"]
