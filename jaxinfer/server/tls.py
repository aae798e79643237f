"""The certificate of a server that speaks HTTPS by itself."""

import dataclasses
import ssl

from jaxinfer.errors import ConfigError
from jaxinfer.files import check_file


@dataclasses.dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM. keyfile: None when the key is in the same file.

    Raises ConfigError, before anything is started, unless they can be served with.
    """

    certfile: str
    keyfile: str | None = None

    def __post_init__(self) -> None:
        for path in filter(None, (self.certfile, self.keyfile)):
            check_file(path, "--ssl-certfile, --ssl-keyfile")
        try:  # without a password given here, the terminal would be asked for one
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certfile, self.keyfile, password="")
        except (OSError, ValueError) as error:
            raise ConfigError(
                "--ssl-certfile and --ssl-keyfile must be a certificate chain and its key in PEM, the key without "
                f"password, got {self.certfile} and {self.keyfile or 'no other file'}: {error}; name others"
            ) from error
