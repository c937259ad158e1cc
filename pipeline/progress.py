"""How a stage of the run tells how far it is; what is shown of it is the report's."""

from collections.abc import Callable

# So many steps are over, of so many, and the one of this name begins.
Step = Callable[[int, int, str], None]


def untold(done: int, count: int, name: str) -> None:
    """For who does not want to know."""
    del done, count, name
