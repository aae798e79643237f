"""How many HTTP requests had which answer. Only routes that exist are told apart, so that no client makes a label."""

from collections import Counter
from collections.abc import Collection, Iterator

METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS"})
OTHER = "other"
LEFT = 499  # the client left before an answer began


class HttpCounts:
    """paths: of the routes; one that ends in {id:path} stands for all that begin like it."""

    def __init__(self, paths: Collection[str]) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._exact = {path for path in paths if "{" not in path}
        self._prefixes = [path[: path.index("{")] for path in paths if "{" in path]

    def add(self, path: str, method: str, status: int) -> None:
        """status: 0 when there was no answer."""
        named = method if method in METHODS else OTHER
        self._counts[self.handler(path), named, str(status or LEFT)] += 1

    def __iter__(self) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and counts, in vLLM's form."""
        for (handler, method, status), count in self._counts.items():
            yield {"handler": handler, "method": method, "status": status}, count

    def handler(self, path: str) -> str:
        """Of all paths one of a few names."""
        if path in self._exact:
            return path
        return next((prefix for prefix in self._prefixes if path.startswith(prefix)), OTHER)
