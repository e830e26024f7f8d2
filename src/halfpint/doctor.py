"""What this machine and this installation can do, and what is missing. Nothing is fetched, no torch is needed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI (int8)",
    "avx512_bf16": "AVX-512 BF16",
    "avx_vnni": "AVX VNNI (int8)",
    "amx_bf16": "AMX BF16",
    "amx_int8": "AMX int8",
    "asimddp": "dot product (int8)",
    "bf16": "BF16",
    "i8mm": "int8 matrix products",
}
"""Instruction sets that decide how fast an encoder can be, by the kernel's name."""

FOR_WHAT = {
    "train": "training, foreign weights, reports",
    "serve": "the HTTP server",
    "openvino": "the OpenVINO engine",
    "cluster": "search on several machines",
    "energy": "energy counters",
}


@dataclass(frozen=True)
class Extra:
    """One optional part of the installation."""

    name: str
    purpose: str
    missing: tuple[str, ...]

    @property
    def remedy(self) -> str | None:
        return f"pip install 'halfpint[{self.name}]'" if self.missing else None


@dataclass(frozen=True)
class Diagnosis:
    """Everything `halfpint doctor` found."""

    python: str
    versions: dict[str, str]
    processor: str
    cores: int
    memory_gb: float | None
    instructions: tuple[str, ...]
    torch: dict[str, Any] | None
    extras: tuple[Extra, ...]
    cache: str
    cache_mb: float
    disk_free_gb: float

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "extras": [{**asdict(each), "remedy": each.remedy} for each in self.extras]}


def diagnose() -> Diagnosis:
    facts = processor_facts()
    cache = hub_cache()
    return Diagnosis(
        python=platform.python_version(),
        versions={name: version for name in _REPORTED if (version := _version(name))},
        processor=facts.get("model name", platform.processor() or platform.machine()),
        cores=usable_cores(),
        memory_gb=_memory_gb(),
        instructions=tuple(text for flag, text in INSTRUCTIONS.items() if flag in _flags(facts)),
        torch=_torch_facts(),
        extras=tuple(Extra(name, purpose, _missing(name)) for name, purpose in FOR_WHAT.items()),
        cache=str(cache),
        cache_mb=_folder_mb(cache),
        disk_free_gb=shutil.disk_usage(_existing(cache)).free / 1e9,
    )


_REPORTED = ("halfpint", "numpy", "tokenizers", "onnxruntime", "torch", "transformers")


def processor_facts() -> dict[str, str]:
    """The first processor of /proc/cpuinfo; empty where there is no such file."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


def describe_hardware() -> str:
    """The processor, its cores and instruction sets, and the accelerator where there is one, in one line."""
    facts = processor_facts()
    name = facts.get("model name", platform.processor() or platform.machine())
    flags = " ".join(flag for flag in INSTRUCTIONS if flag in _flags(facts))
    return ", ".join(filter(None, [name, f"{usable_cores()} cores", flags, _gpu_name()]))


def _gpu_name() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def usable_cores() -> int:
    """The cores this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hub_cache() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _flags(facts: dict[str, str]) -> set[str]:
    return set(facts.get("flags", facts.get("Features", "")).split())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory_gb() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError, AttributeError):
        return None


def _missing(extra: str) -> tuple[str, ...]:
    """The packages of an extra that are not installed."""
    try:
        required = importlib.metadata.requires("halfpint") or []
    except importlib.metadata.PackageNotFoundError:
        required = []
    marker = re.compile(rf"extra\s*==\s*['\"]{extra}['\"]")
    names = [match.group() for line in required if marker.search(line) if (match := re.match(r"[\w.-]+", line))]
    return tuple(name for name in names if _version(name) is None)


def _torch_facts() -> dict[str, Any] | None:
    """What torch can do here, or the error of an installation that is broken; None where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    try:
        import torch
    except Exception as error:  # a library of its own that is missing, or built for other ones: it may be anything
        return {"error": " ".join(str(error).split()) or type(error).__name__, "accelerator": None}
    facts: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "onednn": torch.backends.mkldnn.is_available(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "accelerator": None,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts["accelerator"] = {
            "name": properties.name,
            "count": torch.cuda.device_count(),
            "memory_gb": properties.total_memory / 1e9,
            "bf16": torch.cuda.is_bf16_supported(),
            "ragged_attention": importlib.util.find_spec("torch.nn.attention.varlen") is not None,
        }
    return facts


def _folder_mb(folder: Path) -> float:
    if not folder.is_dir():
        return 0.0
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6


def _existing(folder: Path) -> Path:
    """The folder, or the nearest of its parents that is there."""
    return next(each for each in (folder, *folder.parents) if each.exists())
