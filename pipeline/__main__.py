"""The command: python -m pipeline workload=bert."""

from __future__ import annotations

import sys

from pipeline.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
