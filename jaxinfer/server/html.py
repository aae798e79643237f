"""What every page for people is sent with: it runs and loads nothing but what its own policy names."""

import base64
import hashlib

UTF8 = "text/html; charset=utf-8"


def source(text: str) -> str:
    """How a policy names an inline script or style: by its hash, so that no other one counts."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def headers(policy: str) -> dict[str, str]:
    """policy: of the page itself, to which is added that nobody may frame it."""
    return {
        "content-security-policy": f"{policy}; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
