"""Names under which a model is served, as clients spell them."""

LATEST = ":latest"  # the tag that Ollama's clients put behind a name without one


def spellings(name: str) -> tuple[str, str, str]:
    """A name as it is, without and with the tag `:latest`: all mean one model."""
    return name, name.removesuffix(LATEST), name + LATEST
