"""What systemd is told of a service with Type=notify: a line over the datagram socket that $NOTIFY_SOCKET names.

READY=1: requests are answered.    STOPPING=1: a signal came, running answers may finish.
"""

import logging
import os
import socket

logger = logging.getLogger(__name__)


def notify(state: str) -> None:
    """Tell systemd, if it started this process. A socket that cannot be written is a warning in the log."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    abstract = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.sendto(state.encode(), abstract)
    except OSError as error:
        logger.warning("systemd was not told %s over %s: %s", state, address, error)
