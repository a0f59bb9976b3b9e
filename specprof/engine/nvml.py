"""NVIDIA's own account of the GPUs here (nvidia-ml-py), any part of which may be absent: binding, driver, cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cards:
    """The GPUs of this machine. `handles`: by NVML's index. `absent`: why there are none; "" where there are."""

    nvml: Any  # the binding's module; None where it or its driver is absent
    handles: Mapping[int, Any]
    absent: str

    def told(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """An answer of NVML's; None where this card has none."""
        try:
            answer = ask(*arguments)
        except self.nvml.NVMLError:
            return None
        return answer.decode() if isinstance(answer, bytes) else answer


def cards() -> Cards:
    """Every GPU that the driver lists, whether or not an engine may use it."""
    try:
        import pynvml
    except ImportError:
        return Cards(None, {}, "nvidia-ml-py is not installed, so nobody looked")
    try:
        pynvml.nvmlInit()
        handles = {index: pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())}
    except pynvml.NVMLError as problem:
        return Cards(None, {}, f"no NVIDIA driver: {problem}")
    return Cards(pynvml, handles, "" if handles else "the driver lists no GPU")
