"""Who asks: API keys, compared in constant time, and the tenants they belong to."""

import dataclasses
import hmac
import re
import secrets
from collections.abc import Sequence

from jaxinfer.config import counted
from jaxinfer.errors import ConfigError

_OTHER = re.compile(r"[^!-~]")
_KEY = re.compile(r"[!-~]{8,512}")


@dataclasses.dataclass(frozen=True, slots=True)
class ApiKey:
    """A secret that may ask in a tenant's name. Two keys of one tenant share its limits and its cached prompts.

    is_named: the tenant's name is a person's choice, not a key's place in a list, which may be another tomorrow.
    """

    tenant: str
    secret: str = dataclasses.field(repr=False)
    is_named: bool = True

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.secret):
            others = ", others among them" if _OTHER.search(self.secret) else ""
            given = f"{counted(len(self.secret), 'character')}{others}"
            law = "an API key must be 8 to 512 visible ASCII characters"
            raise ConfigError(f"{law}, {self.tenant} has {given}; make one, as with `openssl rand -hex 16`")


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    """salt: cached prompts are found under their own salt only; made at each start, so that no client can name it.

    lasting: the same at each start: the name it was given, or its key. Never to be written or shown as it is.
    """

    name: str
    salt: str = dataclasses.field(repr=False)
    lasting: str = dataclasses.field(repr=False, default="")


EVERYBODY = Tenant("", "")  # without keys


class Tenants:
    """The tenants of the keys. How long a look-up takes does not depend on how much of a key is right, or on which."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        tenants = {
            key.tenant: Tenant(
                key.tenant, secrets.token_hex(16), f"name {key.tenant}" if key.is_named else f"key {key.secret}"
            )
            for key in keys
        }
        self.all = tuple(tenants.values())
        self._hmac_key = secrets.token_bytes(32)
        self._known = [(self._digest(key.secret.encode()), tenants[key.tenant]) for key in keys]

    def of(self, secret: bytes) -> Tenant | None:
        """Whose secret this is; None when nobody's."""
        given = self._digest(secret)
        found = None
        for digest, tenant in self._known:  # all of them: an early end would tell which one it was
            if hmac.compare_digest(digest, given):
                found = tenant
        return found

    def _digest(self, secret: bytes) -> bytes:
        return hmac.digest(self._hmac_key, secret, "sha256")
