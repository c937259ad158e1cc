"""Tests of the launch plan: where every tensor is in device memory, and what is launched in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.codegen.cuda.launch_plan import ALIGNMENT, LaunchPlan, Place
from pipeline.codegen.cuda.link import link
from pipeline.errors import CheckError, CodegenError
from pipeline.measurement.host import detect_host
from tests.codegen.cuda.small_plans import chain, packed_kernel, plan

SIZE = 512  # of 400 bytes, to the next multiple of 256


def spans(made: LaunchPlan) -> list[tuple[Place, int]]:
    found = []
    for call in (*made.prologues, *made.calls):
        sizes = {argument.name: argument.nbytes for argument in made.kernels[call.kernel].arguments}
        found += [(place, sizes[name]) for name, place in call.places.items()]
    return found


def test_calls_keep_their_order_and_every_place_lies_in_its_area_at_a_multiple_of_256() -> None:
    made = link(plan())
    assert [call.label for call in made.calls] == ["sum", "back", "z", "u"]
    assert made.launches == 6
    for place, size in spans(made):
        assert place.offset % ALIGNMENT == 0
        assert place.offset + size <= made.sizes[place.area]


def test_an_output_is_written_where_it_lives_and_further_names_are_copied_at_the_end() -> None:
    made = link(plan())
    assert made.calls[2].places["c"] == made.output_places[0]
    assert made.calls[0].places["c"] == made.output_places[1]
    sources = {copy.label: copy.source for copy in made.copies}
    assert sources == {
        "copy to v.out": made.copies[0].source, "copy to y.out": made.input_places[1],
        "copy to z.again": made.output_places[0],
    }  # fmt: skip
    assert sources["copy to v.out"].area == "weights"
    assert [port.shape for port in made.outputs] == [(100,)] * 4 + [(10, 10)]


def test_a_constant_that_only_a_prologue_reads_is_given_back_and_its_prologue_runs_once() -> None:
    made = link(plan())
    assert [weight.name for weight in made.weights] == ["v", "w"]
    assert (made.sizes["weights"], made.sizes["setup"], made.sizes["packed"]) == (SIZE, SIZE, SIZE)
    assert len(made.prologues) == 1
    assert made.prologues[0].places == {"w": Place("setup", 0), "p": Place("packed", 0)}
    assert made.calls[1].places["p"] == made.calls[3].places["p"] == Place("packed", 0)
    assert "w" not in made.calls[1].places


def test_the_same_kernel_with_other_constants_is_packed_again() -> None:
    two = plan()
    calls = (*two.calls[:3], replace(two.calls[3], buffers=("z", "v", "u")))
    made = link(replace(two, calls=calls))
    assert len(made.prologues) == 2
    assert made.calls[1].places["p"] != made.calls[3].places["p"]


def test_tensors_that_are_alive_together_share_no_bytes_and_others_do() -> None:
    made = link(chain(9))
    assert made.sizes["arena"] == 2 * SIZE == made.memory.lower_bound
    assert made.memory.unshared_bytes == 8 * 400
    for call in made.calls:
        assert call.places["a"] != call.places["c"]


def test_a_workspace_shares_no_bytes_with_what_its_call_reads_and_writes() -> None:
    places = link(plan()).calls[1].places
    assert places["t"].area == "arena"
    assert len({(place.area, place.offset) for place in places.values()}) == len(places)


def test_a_plan_for_a_cpu_is_refused() -> None:
    with pytest.raises(CodegenError, match="is no GPU"):
        link(replace(plan(), target=detect_host()))


def test_packed_arguments_without_a_prologue_are_refused() -> None:
    kernel = packed_kernel()
    bare = replace(kernel, program=replace(kernel.program, prologue=()))
    with pytest.raises(CodegenError, match="no prologue"):
        link(replace(plan(), kernels=(plan().kernels[0], bare)))


def test_a_call_that_reads_what_nothing_wrote_is_refused() -> None:
    made = plan()
    with pytest.raises(CheckError, match="reads what nothing wrote"):
        link(replace(made, calls=made.calls[1:]))


def test_a_prologue_that_takes_an_input_is_refused() -> None:
    kernel = packed_kernel()
    (launch,) = kernel.program.prologue
    greedy = replace(kernel, program=replace(kernel.program, prologue=(replace(launch, arguments=("x", "p")),)))
    with pytest.raises(CodegenError, match="known only when the model runs"):
        link(replace(plan(), kernels=(plan().kernels[0], greedy)))
