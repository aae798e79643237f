"""What the server keeps on disk for /v1/files and /v1/batches, in a folder of its own, and whose that is."""

import dataclasses
import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from starlette.requests import Request

from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.offline.batches import Batches
from jaxinfer.offline.disk import OwnFolder, replacing
from jaxinfer.offline.files import FileStore, KeptLimits
from jaxinfer.server.tenants import Tenant

FLAG = "--files-dir"
_KEY_BYTES = 32


@dataclasses.dataclass(frozen=True)
class Storage:
    """Open until the process ends. Invariant: no other process has the folder."""

    folder: OwnFolder
    files: FileStore
    batches: Batches
    key: bytes  # of the owners' names

    def close(self) -> None:
        """Let another server have the folder."""
        self.folder.close()

    def owner_of(self, tenant: Tenant) -> str:
        """The tenant's name on disk: the same at each start, and no help in guessing a key without the folder."""
        return _owner(self.key, tenant)


def open_storage(path: Path, limits: KeptLimits, llm: AsyncLLM, tenants: Iterable[Tenant]) -> Storage:
    """Raises ConfigError or BatchError for a folder that cannot be used."""
    folder = OwnFolder(path, FLAG)
    key = _key_in(path / "key")
    salts = {_owner(key, tenant): tenant.salt for tenant in tenants}
    files = FileStore(path / "files", limits)
    return Storage(folder, files, Batches(llm, files, path / "batches", salts.get), key)


def storage_of(request: Request) -> Storage:
    """The server's, where these routes are."""
    storage: Storage = request.app.state.storage
    return storage


def _key_in(path: Path) -> bytes:
    if not path.exists():
        with replacing(path) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_bytes(_KEY_BYTES))
    return path.read_bytes()


def _owner(key: bytes, tenant: Tenant) -> str:
    return hmac.digest(key, tenant.lasting.encode(), "sha256").hex()[:32]
