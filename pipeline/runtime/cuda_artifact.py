"""The artifact of a model for an NVIDIA GPU: a folder that holds machine code and says how it is launched.

    manifest.json         what the model takes and gives, the calls in order with the places of their arguments, the
                          size of each area of device memory, the SHA-256 of every file, where it came from
    kernels/*.cu          readable source, with the header that it includes
    cubins/*.cubin        its machine code, one for each source
    weights.safetensors   constants, which are uploaded once

No compiler is needed to load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pipeline.codegen.cuda.compile import HEADERS, headers
from pipeline.codegen.cuda.kernel import CudaKernel, CudaSource, Launch, Resources
from pipeline.codegen.cuda.launch_plan import AREAS, Area, LaunchPlan, Place, PlannedCall, PlannedCopy
from pipeline.codegen.kernel import Argument
from pipeline.codegen.module import MemoryFigures, Weight
from pipeline.errors import UserError
from pipeline.runtime.artifact_folder import (
    MANIFEST,
    WEIGHTS,
    not_whole,
    port,
    read_file,
    read_manifest,
    refuse_kind,
    store_file,
    unreadable,
    verify_file,
    write_folder,
)
from pipeline.runtime.weights_file import area_bytes, chunks, map_area


@dataclass(frozen=True, slots=True, eq=False)
class CudaArtifact:
    """A loaded folder: a launch plan whose weights are mapped."""

    path: Path
    plan: LaunchPlan

    @property
    def predicted(self) -> bool:
        """The choice of its kernels is a model's and no clock's."""
        return bool(self.plan.provenance.get("predicted", False))


def save_cuda(plan: LaunchPlan, path: Path | str) -> Path:
    """Writes the folder, in place of an artifact of that name if there is one; any other folder there is refused."""
    return write_folder(path, "cuda", lambda folder: _write(plan, folder))


def load_cuda_artifact(path: Path | str, *, verify: bool = False) -> CudaArtifact:
    """Reads the folder. verify: hash the weights too, which is the slow part. Needs no GPU."""
    path = Path(path)
    manifest = read_manifest(path)
    refuse_kind(manifest, "cuda", path)
    try:
        weights = tuple(Weight(w["name"], tuple(w["shape"]), w["dtype"], int(w["offset"])) for w in manifest["weights"])
        if verify:
            verify_file(path, WEIGHTS, manifest)
        plan = LaunchPlan(
            kernels=tuple(_kernel(path, record, manifest) for record in manifest["kernels"]),
            inputs=tuple(port(each) for each in manifest["inputs"]),
            outputs=tuple(port(each) for each in manifest["outputs"]),
            input_places=tuple(_place(each["place"]) for each in manifest["inputs"]),
            output_places=tuple(_place(each["place"]) for each in manifest["outputs"]),
            weights=weights,
            data=_weights(path, weights),
            prologues=tuple(_call(each) for each in manifest["prologues"]),
            calls=tuple(_call(each) for each in manifest["calls"]),
            copies=tuple(
                PlannedCopy(_place(each["source"]), _place(each["target"]), int(each["nbytes"]), each["label"])
                for each in manifest["copies"]
            ),
            sizes={area: int(manifest["sizes"][area]) for area in get_args(Area)},
            memory=MemoryFigures(**manifest["memory"]),
            arch=str(manifest["target"]["arch"]),
            target=str(manifest["target"]["name"]),
            provenance=dict(manifest["provenance"]),
        )
        _check_places(plan, path)
        return CudaArtifact(path, plan)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise not_whole(path, error) from error


def _write(plan: LaunchPlan, folder: Path) -> dict[str, Any]:
    files: dict[str, str] = {}

    def put(name: str, data: bytes) -> str:
        (folder / name).parent.mkdir(exist_ok=True)
        files[name] = store_file(folder / name, (data,))
        return name

    for name, text in zip(HEADERS, headers(), strict=True):
        put(f"kernels/{name}", text.encode())
    kernels = []
    for number, kernel in enumerate(plan.kernels):
        stem = f"{number:02d}_{kernel.symbol[:80]}"
        kernels.append({
            "symbol": kernel.symbol,
            "source": put(f"kernels/{stem}.cu", kernel.program.source.encode()),
            "cubin": put(f"cubins/{stem}.cubin", kernel.cubin),
            "launches": [asdict(launch) for launch in kernel.program.launches],
            "prologue": [asdict(launch) for launch in kernel.program.prologue],
            "arguments": [asdict(argument) for argument in kernel.program.arguments],
            "resources": {name: asdict(found) for name, found in kernel.resources.items()},
        })  # fmt: skip
    files[WEIGHTS] = store_file(folder / WEIGHTS, chunks(plan.weights, plan.data))
    return {
        "target": {"arch": plan.arch, "name": plan.target},
        "inputs": _ports(plan.inputs, plan.input_places),
        "outputs": _ports(plan.outputs, plan.output_places),
        "sizes": dict(plan.sizes),
        "memory": asdict(plan.memory),
        "weights": [asdict(weight) for weight in plan.weights],
        "kernels": kernels,
        "prologues": [_said(call) for call in plan.prologues],
        "calls": [_said(call) for call in plan.calls],
        "copies": [
            {"source": _pair(c.source), "target": _pair(c.target), "nbytes": c.nbytes, "label": c.label}
            for c in plan.copies
        ],
        "provenance": dict(plan.provenance),
        "files": files,
    }


def _ports(ports: Any, places: Any) -> list[dict[str, Any]]:
    return [asdict(each) | {"place": _pair(place)} for each, place in zip(ports, places, strict=True)]


def _said(call: PlannedCall) -> dict[str, Any]:
    places = {name: _pair(place) for name, place in call.places.items()}
    return {"kernel": call.kernel, "label": call.label, "task": call.task, "places": places}


def _pair(place: Place) -> list[Any]:
    return [place.area, place.offset]


def _place(pair: Any) -> Place:
    area, offset = pair
    if area not in AREAS:
        raise ValueError(f"{area!r} is no area")
    return Place(area, int(offset))


def _call(record: Mapping[str, Any]) -> PlannedCall:
    places = {name: _place(pair) for name, pair in record["places"].items()}
    return PlannedCall(int(record["kernel"]), places, record["label"], record["task"])


def _kernel(path: Path, record: Mapping[str, Any], manifest: Mapping[str, Any]) -> CudaKernel:
    source = CudaSource(
        symbol=record["symbol"],
        source=read_file(path, record["source"], manifest).decode(),
        launches=tuple(_launch(each) for each in record["launches"]),
        prologue=tuple(_launch(each) for each in record["prologue"]),
        arguments=tuple(
            Argument(each["name"], tuple(each["shape"]), each["dtype"], each["role"]) for each in record["arguments"]
        ),
        arch=manifest["target"]["arch"],
    )
    resources = {name: Resources(**found) for name, found in record["resources"].items()}
    return CudaKernel(source, read_file(path, record["cubin"], manifest), resources)


def _launch(record: Mapping[str, Any]) -> Launch:
    x, y, z = record["grid"]
    return Launch(
        record["symbol"], (x, y, z), int(record["threads"]), int(record["shared_bytes"]), tuple(record["arguments"])
    )


def _weights(path: Path, weights: tuple[Weight, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """The bytes of each, mapped from the file."""
    try:
        area = map_area(path / WEIGHTS, area_bytes(weights))
    except OSError as error:
        raise unreadable(path / WEIGHTS, error) from error
    return {
        weight.name: area[weight.offset : weight.offset + area_bytes((weight,)) - weight.offset] for weight in weights
    }


def _check_places(plan: LaunchPlan, path: Path) -> None:
    """A place outside of its area would be an access to somebody else's memory."""
    for call in (*plan.prologues, *plan.calls):
        arguments = {argument.name: argument for argument in plan.kernels[call.kernel].arguments}
        for name, place in call.places.items():
            if place.offset < 0 or place.offset + arguments[name].nbytes > plan.sizes[place.area]:
                raise UserError(
                    "the manifest names a place outside its area",
                    where=str(path / MANIFEST),
                    why=f"{name} of {call.label} at {place.offset} of {plan.sizes[place.area]} bytes of {place.area}",
                )
