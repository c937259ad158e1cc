"""One contest: a normalisation and a product against one kernel for both, with times that a test gives."""

from __future__ import annotations

from pipeline.search.candidates import Candidate, Observation
from pipeline.search.contest import Contest, contest
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from pipeline.space.partition import partition
from pipeline.superopt.mugraph.graph import MuGraph
from pipeline.superopt.stage import look_for_alternatives
from tests.superopt.model_graphs import TARGET
from tests.superopt.stage_cases import RULES, Notes, Search, effort, normalised


def entered(*graphs: MuGraph) -> Contest:
    """The normalisation and the product against one kernel for both."""
    graph = normalised()
    parts = partition(graph)
    found = look_for_alternatives(graph, parts, TARGET, RULES, effort(), Search(graphs), Notes())
    sketches = [generate(lower(task.graph, task.name, task.constants), RULES, TARGET) for task in parts.tasks]
    return contest(graph, parts, sketches, found.alternatives, TARGET)


def measure(made: Contest, state: int, seconds: float | None, sketch: int = 0) -> None:
    """As if a candidate had taken that long, or had failed."""
    candidate = Candidate(sketch, (len(made.states[state].history.observations),))
    made.states[state].history.observations.append(Observation(candidate, seconds))


def sketch_of(made: Contest, graph: int) -> int:
    """The first sketch of a µGraph of the only alternative."""
    (entrant,) = made.entrants
    return entrant.first + next(n for n, one in enumerate(entrant.alternative.sketches) if one.graph == graph)
