"""What a search did: how much was enumerated, pruned by each method, proven and refused."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Statistics:
    """Counts of one search, or of a part of it.

    assignments         of roles to the axes that were searched
    offered             operators on operands
    values              different ones that were kept
    prefixes            partial programs that were taken up
    topologies          whole programs, no two of them the same
    unknown, taken_up   offers that the oracle did not know, and how many of them were followed in the end
    pruned_expression   offers that can be in no program equal to the goal
    pruned_equal        offers and partial programs that equal what is known and are no cheaper
    pruned_dependence   choices of maps by position that pair an element with one of another tile; values that the
                        result does not depend on are `pruned_dead`
    pruned_dead         values in no program
    pruned_roofline     assignments and partial programs that cannot be better than what is known
    pruned_memory       tiles that do not fit at their least extents
    not_provable        values without a model over the field
    proven, refused     programs that the verifier accepted, and those that it did not
    """

    assignments: int = 0
    offered: int = 0
    values: int = 0
    prefixes: int = 0
    topologies: int = 0
    unknown: int = 0
    taken_up: int = 0
    pruned_expression: int = 0
    pruned_equal: int = 0
    pruned_dependence: int = 0
    pruned_dead: int = 0
    pruned_roofline: int = 0
    pruned_memory: int = 0
    not_provable: int = 0
    proven: int = 0
    refused: int = 0

    def add(self, other: Statistics) -> None:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))

    def row(self) -> dict[str, int]:
        """The counts by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}
