"""What every page is made of: the files that ship with it, and the policy that allows them and nothing else."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from specprof.publish.markdown import finalize
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
    """What fills a template: all text is without control characters, and a missing name is an error.

    Templates named *.html.j2 escape for HTML, all others for Markdown.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, pass_eval_context, select_autoescape
    from jinja2.nodes import EvalContext

    @pass_eval_context
    def printed(context: EvalContext, value: object) -> object:
        return _plain_text(value) if context.autoescape else finalize(value)

    return Environment(
        loader=PackageLoader("specprof.publish"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=printed,
    )


def _plain_text(value: object) -> object:
    """Text without control characters; markup the templates made passes as it is."""
    return plain(value) if type(value) is str else value
