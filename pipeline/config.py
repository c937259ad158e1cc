"""The configuration as checked values: what every YAML group may hold, and of which type; defaults are in conf/."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    ValidationError,
    model_validator,
)

from pipeline.errors import ConfigError, listed
from pipeline.explain import did_you_mean, explain
from pipeline.frontend.precision import Precision
from pipeline.ir.target import CAPABILITIES, Cache, Gpu, Target, capability_of, gpu_target
from pipeline.measurement.cuda_device import detect_gpu
from pipeline.measurement.host import detect_host, with_overrides
from pipeline.registry import Component, Registry

COST_MODEL_IS_GIVEN = ("seed",)
BUILDER_IS_GIVEN = ("function", "target", "workers", "options")
RUNNER_IS_GIVEN = ("target",)
PREDICTED_IS_GIVEN = ("target", "predict", "workers")
ABOUT_DETECTION = ("architectures", "instead")
MOST_CORES = 1024  # a thread is started for each


@dataclass(frozen=True, slots=True)
class Part:
    """A component of the configuration: where it stands, and the names of the arguments that the engine offers."""

    where: str
    component: Component
    given: tuple[str, ...] = ()


class Settings(BaseModel):
    """A node of the configuration: every key known, every key given, no conversion between types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Share = Annotated[float, Field(gt=0.0, le=1.0)]
S = TypeVar("S", bound=Settings)


def _complete(settings: S, detect: bool) -> S:
    """The settings, where nothing is missing that is not detected."""
    missing = [name for name, value in settings if value is None]
    if missing and not detect:
        raise ValueError(f"with detect: false every field must be given; these are null: {listed(missing)}")
    return settings


class CacheSettings(Settings):
    """One level of cache (`pipeline.ir.target.Cache`)."""

    level: PositiveInt
    size: PositiveInt
    ways: PositiveInt
    shared_by: PositiveInt


class CpuSettings(Settings):
    """The CPU that the program is for; a field that is null is read from this machine where `detect` is set."""

    detect: bool
    kind: Literal["cpu", "cuda"]  # the other one is `GpuSettings`; here so that an error names both
    name: str | None
    triple: str | None
    cpu: str | None
    features: tuple[Annotated[str, Field(pattern=r"^[+-][\w.-]+$")], ...] | None
    cores: Annotated[int, Field(gt=0, le=MOST_CORES)] | None
    vector_bits: Literal[64, 128, 256, 512, 1024, 2048] | None
    vector_registers: PositiveInt | None
    fma_per_cycle: PositiveFloat | None
    fma_latency: PositiveInt | None
    clock_ghz: PositiveFloat | None
    bandwidth_gbs: PositiveFloat | None
    caches: tuple[CacheSettings, ...] | None
    line: PositiveInt | None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        return _complete(self, self.detect)

    def resolve(self) -> Target:
        """The target, with what is null filled in from this machine."""
        given: dict[str, Any] = {
            field.name: getattr(self, field.name)
            for field in fields(Target)
            if getattr(self, field.name, None) is not None
        }
        if self.caches is not None:
            given["caches"] = tuple(Cache(c.level, c.size, c.ways, c.shared_by) for c in self.caches)
        return with_overrides(detect_host(), **given) if self.detect else Target(**given)


def _supported(arch: str) -> str:
    """From the oldest whose instructions are known to the family of the newest."""
    oldest, newest = CAPABILITIES[0], CAPABILITIES[-1]
    if not oldest <= capability_of(arch) < (newest // 10 + 1) * 10:
        known = ", ".join(f"sm_{number}" for number in CAPABILITIES)
        raise ValueError(f"programs cannot be made for '{arch}'. Choose one of {known}, or a relative of these")
    return arch


Architecture = Annotated[str, Field(pattern=r"^sm_\d{2,3}[af]?$"), AfterValidator(_supported)]
Rates = dict[str, PositiveFloat]


class GpuArchitectureSettings(Settings):
    """What all GPUs of one architecture have in common (`pipeline.ir.target.Gpu`)."""

    arch: Architecture
    threads_per_block: PositiveInt
    threads: PositiveInt
    blocks: PositiveInt
    registers: PositiveInt
    registers_per_thread: PositiveInt
    shared_bytes: PositiveInt
    shared_per_block: PositiveInt
    shared_reserved: NonNegativeInt
    l2_bytes_per_clock: PositiveFloat
    fma: Rates
    tensor_fma: Rates
    mma_share: Share
    special_per_clock: PositiveFloat
    memory_latency: PositiveInt
    l2_latency: PositiveInt
    shared_latency: PositiveInt
    launch_us: PositiveFloat


class GpuSettings(Settings):
    """The GPU that the program is for; a field that is null is read from this machine's GPU where `detect` is set.

    architectures   what is known of those that may be found, by name
    instead         targets that need no GPU here
    """

    detect: bool
    kind: Literal["cuda"]
    architectures: dict[Architecture, GpuArchitectureSettings]
    instead: tuple[str, ...]
    name: str | None
    arch: Architecture | None
    multiprocessors: PositiveInt | None
    clock_ghz: PositiveFloat | None
    bandwidth_gbs: PositiveFloat | None
    l2_bytes: PositiveInt | None
    memory_bytes: PositiveInt | None
    threads_per_block: PositiveInt | None
    threads: PositiveInt | None
    blocks: PositiveInt | None
    registers: PositiveInt | None
    registers_per_thread: PositiveInt | None
    shared_bytes: PositiveInt | None
    shared_per_block: PositiveInt | None
    shared_reserved: NonNegativeInt | None
    l2_bytes_per_clock: PositiveFloat | None
    fma: Rates | None
    tensor_fma: Rates | None
    mma_share: Share | None
    special_per_clock: PositiveFloat | None
    memory_latency: PositiveInt | None
    l2_latency: PositiveInt | None
    shared_latency: PositiveInt | None
    launch_us: PositiveFloat | None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.detect and not self.architectures:
            raise ValueError("with detect: true the architectures that may be found must be given")
        return _complete(self, self.detect)

    def resolve(self) -> Target:
        """The target, with what is null read from the GPU of this machine; a `UserError` where there is none."""
        given = {
            name: value
            for name, value in self
            if value is not None and name not in ("detect", "kind", *ABOUT_DETECTION)
        }
        if self.detect:
            known = {name: dict(each) for name, each in self.architectures.items()}
            given = {**detect_gpu(known, instead=self.instead), **given}
        facts = {field.name: given[field.name] for field in fields(Gpu)}
        return gpu_target(given["name"], given["clock_ghz"], given["bandwidth_gbs"], Gpu(**facts))


def _branch(data: Any) -> str:
    """Which kind of target a node describes; the name is one that an error's path leaves out."""
    kind = data.get("kind") if isinstance(data, dict) else getattr(data, "kind", None)
    return "target[cuda]" if kind == "cuda" else "target[cpu]"


TargetSettings = Annotated[
    Annotated[CpuSettings, Tag("target[cpu]")] | Annotated[GpuSettings, Tag("target[cuda]")], Discriminator(_branch)
]


class RuleSettings(Settings):
    """The rules, in the order in which they are applied. `extra` is for a user's own, after ours."""

    schedule: tuple[Component, ...]
    graph: tuple[Component, ...]
    extra: tuple[Component, ...]


class SuperoptSettings(Settings):
    """Which subprograms are searched for fused kernels, and how hard.

    seconds      of search in all
    workers      processes that search; null: one per core of the target
    subprograms  alternatives that are tuned, at most
    graphs       µGraphs of each that are tuned
    anchors      products and reductions in a subprogram, at most
    nodes        operations in a subprogram, at most
    patience     ways to use the axes that are searched without progress before the search of a subprogram ends; null:
                 it goes on as long as there is time
    tests        over finite fields that a µGraph must pass
    algebra      the axioms that the search prunes by
    rewrites     graph rules that make fewer kernels of a graph, each used where the roofline gains
    """

    enabled: bool
    seconds: PositiveFloat
    workers: PositiveInt | None
    subprograms: PositiveInt
    graphs: PositiveInt
    anchors: PositiveInt
    nodes: PositiveInt
    patience: PositiveInt | None
    tests: PositiveInt
    algebra: Component
    rewrites: tuple[Component, ...]


class SearchSettings(Settings):
    """How the budget is spent.

    trials            measured candidates in all; null: as many as the time allows
    seconds           of tuning in all; null: as long as the trials last
    batch             candidates measured between two fits of the cost model
    trials_per_task   at most, for one task; null: no limit of its own
    patience          batches of a task without a gain of `min_gain` before the task is called converged
    candidates        ranked by the cost model for each batch
    """

    trials: PositiveInt | None
    seconds: PositiveFloat | None
    batch: PositiveInt
    trials_per_task: PositiveInt | None
    patience: PositiveInt
    min_gain: NonNegativeFloat
    candidates: PositiveInt
    strategy: Component

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.trials is None and self.seconds is None:
            raise ValueError("one of trials and seconds must be given, or the search never ends")
        return self


class VerificationSettings(Settings):
    """What is compared with float64.

    random_inputs      sets of random inputs per candidate
    hostile            also large, tiny, zero, infinite and NaN inputs
    tolerance_factor   multiplies the tolerance that is derived from dtype and reduction length
    vote               ask ONNX Runtime about the whole module too, where it is installed
    """

    random_inputs: PositiveInt
    hostile: bool
    tolerance_factor: PositiveFloat
    vote: bool


class MeasurementSettings(Settings):
    """How candidates are built and timed.

    workers     processes that build; null: one per core of the target
    runner      what checks and times; `predicted` stands in for it where no device of the target is here
    finalists   candidates measured again, in turns, before one is called best
    rounds      of that
    """

    workers: PositiveInt | None
    finalists: PositiveInt
    rounds: PositiveInt
    builder: Component
    runner: Component
    predicted: Component | None


class CodegenSettings(Settings):
    """How kernels become code.

    kind    of the target that the code is for
    level   LLVM's optimization level
    keep    the IR and assembly of the chosen kernels go to the run's folder
    """

    kind: Literal["cpu", "cuda"]
    level: Literal[0, 1, 2, 3]
    keep: bool


class StoreSettings(Settings):
    """url: SQLAlchemy's address of the tuning records · resume: use the records that are there already."""

    url: str
    resume: bool


class ReportSettings(Settings):
    """console: the table at the end · progress: the bar, or plain lines when the output is not a terminal."""

    console: bool
    progress: bool


class CompareSettings(Settings):
    """peers: other runtimes to compare with, by name · plugins: what a name stands for · seconds: per peer, at most."""

    peers: tuple[str, ...]
    seconds: PositiveFloat
    plugins: dict[str, Component]

    @model_validator(mode="after")
    def _known(self) -> Self:
        for peer in self.peers:
            if peer not in self.plugins:
                choices = listed(self.plugins) or "none is configured"
                guess = did_you_mean(peer, self.plugins)
                raise ValueError(f"peers: there is no peer '{peer}'. {guess}The peers are: {choices}")
        return self


class RegistrySettings(Settings):
    """packages: those whose classes the configuration may name, beside our own."""

    packages: tuple[str, ...]


class Config(Settings):
    """Everything that a run is told."""

    seed: NonNegativeInt = Field(le=2**63 - 1)
    precision: Precision
    workload: Component
    target: TargetSettings
    rules: RuleSettings
    superopt: SuperoptSettings
    search: SearchSettings
    cost_model: Component
    verification: VerificationSettings
    codegen: CodegenSettings
    measurement: MeasurementSettings
    store: StoreSettings
    report: ReportSettings
    compare: CompareSettings
    registry: RegistrySettings

    @property
    def plugins(self) -> Registry:
        """The registry that builds this configuration's components."""
        return Registry(self.registry.packages)

    def components(self) -> tuple[Part, ...]:
        """Every component, with its dotted path and the arguments that the engine offers."""
        return (
            Part("workload", self.workload),
            *(Part(f"rules.schedule[{i}]", rule) for i, rule in enumerate(self.rules.schedule)),
            *(Part(f"rules.graph[{i}]", rule) for i, rule in enumerate(self.rules.graph)),
            *(Part(f"rules.extra[{i}]", rule) for i, rule in enumerate(self.rules.extra)),
            Part("superopt.algebra", self.superopt.algebra),
            *(Part(f"superopt.rewrites[{i}]", rule) for i, rule in enumerate(self.superopt.rewrites)),
            Part("search.strategy", self.search.strategy),
            Part("cost_model", self.cost_model, COST_MODEL_IS_GIVEN),
            Part("measurement.builder", self.measurement.builder, BUILDER_IS_GIVEN),
            Part("measurement.runner", self.measurement.runner, RUNNER_IS_GIVEN),
            *(
                Part("measurement.predicted", component, PREDICTED_IS_GIVEN)
                for component in (self.measurement.predicted,)
                if component is not None
            ),
            *(Part(f"compare.plugins.{name}", self.compare.plugins[name]) for name in self.compare.peers),
        )


def parse(data: Mapping[str, Any]) -> Config:
    """The checked configuration of plain data; a `ConfigError` names what is wrong first by its dotted path."""
    try:
        text = json.dumps(data)
    except TypeError as error:
        raise ConfigError("the configuration holds a value that is not plain data", why=str(error)) from error
    try:
        config = Config.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise explain(error, Config) from error
    _refuse_code_of_another_kind(config)
    for part in config.components():
        config.plugins.check(part.component, part.where, part.given)
    return config


def _refuse_code_of_another_kind(config: Config) -> None:
    """Raises a `ConfigError` where the code would be for another kind of target."""
    made, target = config.codegen.kind, config.target.kind
    if made != target:
        kinds = {"cpu": "a CPU", "cuda": "a GPU"}
        raise ConfigError(
            f"the code would be for {kinds[made]}, and the target is {kinds[target]}",
            where="codegen",
            why=f"codegen.kind is '{made}' and target.kind is '{target}'",
            todo="Leave codegen out, as each target brings its own: codegen=llvm for a CPU, codegen=cuda for a GPU",
        )
