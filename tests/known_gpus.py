"""The GPUs of `conf/target` as targets, for tests of what is made for them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from pydantic import TypeAdapter

from pipeline.config import GpuSettings
from pipeline.ir.target import Target

CONF = Path(__file__).resolve().parent.parent / "conf"
GPUS = ("t4", "a100", "a10", "rtx3090", "l4", "rtx4090", "h100", "h200", "b200")


@cache
def gpu(name: str) -> Target:
    """The target that `target=NAME` chooses."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        node = OmegaConf.to_container(compose("config", overrides=["+workload=gmm", f"target={name}"]).target)
    return TypeAdapter(GpuSettings).validate_python(node, strict=False).resolve()
