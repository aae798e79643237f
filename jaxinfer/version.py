"""The version, in one place: the build, `jaxinfer --version` and the server's /version read it here."""

__version__ = "0.1.0"
