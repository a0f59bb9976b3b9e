"""How a server lets us in: a bearer token that only the environment holds, and certificates that are always verified.

An `Access` names the environment variable, never the token, so that it may be shown, stored and sent to another
process. The token is read where a request is made, and goes nowhere but into that request's header.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specprof.errors import InputError

if TYPE_CHECKING:
    from specprof.engine.protocol import Engine


@dataclass(frozen=True, slots=True)
class Access:
    """`token_env`: the environment variable that holds the bearer token. `ca_file`: certificates to trust as well."""

    token_env: str | None = None
    ca_file: Path | None = None

    def headers(self) -> Mapping[str, str]:
        """What to send with every request. InputError where the variable is not set or holds what no header may."""
        if self.token_env is None:
            return {}
        token = self._token()
        if not token:
            raise InputError(
                f"engine.token_env: the environment variable {self.token_env} is not set. Export the server's bearer "
                "token under that name, or remove token_env for a server that asks for none."
            )
        if not (token.isascii() and token.isprintable()):
            raise InputError(
                f"engine.token_env: what {self.token_env} holds is no bearer token (a line break or a character "
                "beyond ASCII is in it). Export the token alone."
            )
        return {"Authorization": f"Bearer {token}"}

    def scrubbed(self, answer: bytes) -> bytes:
        """What a server said, without the token, should it have repeated it ("invalid key: sk-…")."""
        return self.scrubbed_text(answer.decode("latin-1")).encode("latin-1")

    def scrubbed_text(self, said: str) -> str:
        """The same of a text, in which JSON may have written a "/" of the token as an escape."""
        token = self._token()
        return said.replace(token, "(token)").replace(token.replace("/", "\\/"), "(token)") if token else said

    def tls(self) -> ssl.SSLContext:
        """Verifies the server's certificate and its name. InputError where `ca_file` holds no certificate."""
        context = ssl.create_default_context()
        if self.ca_file is None:
            return context
        try:
            context.load_verify_locations(self.ca_file)
        except (OSError, ssl.SSLError):
            raise InputError(
                f"engine.ca_file: {self.ca_file} cannot be read as certificates. Give a file in PEM format."
            ) from None
        return context

    def _token(self) -> str:
        """What the environment holds; "" without a variable, or where that is not set."""
        return os.environ.get(self.token_env, "").strip() if self.token_env is not None else ""


OPEN = Access()  # servers that specprof starts itself listen on loopback, to nobody else


def access_of(engine: Engine) -> Access:
    """How to be let in by a running engine: only one that is attached to asks for more than its address."""
    access = getattr(engine, "access", OPEN)
    return access if isinstance(access, Access) else OPEN
