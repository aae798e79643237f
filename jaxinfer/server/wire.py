"""uvicorn's HTTP/1.1 protocol, but what is no HTTP gets our error object too."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jaxinfer.errors import InvalidRequest
from jaxinfer.protocol.responses import error_body


class JsonErrorsProtocol(HttpToolsProtocol):
    """Overrides the one answer that uvicorn writes past the app."""

    def send_400_response(self, msg: str) -> None:
        body = error_body(InvalidRequest(f"the request must be HTTP/1.1: {msg}", code="invalid_http"))
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n" % len(body)
        )
        self.transport.write(head + body)
        self.transport.close()
