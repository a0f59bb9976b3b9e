"""What every page is made of: the files that ship with it, and the policy that allows them and nothing else."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from specprof.publish.numbers import plain

if TYPE_CHECKING:
    from jinja2 import Environment


def packaged(name: str) -> str:
    """A file of `templates/`, as it ships."""
    return files("specprof.publish").joinpath("templates", name).read_text(encoding="utf-8")


def csp_hash(text: str) -> str:
    """What a page's security policy allows: exactly this text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def page_environment() -> Environment:
    """What fills a page's template: all text is escaped and without control characters, a missing name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("specprof.publish"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
