"""How many HTTP requests had which answer, and how long they took.

Only routes that exist are told apart, so that no client makes a label.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator

from prometheus_client.core import Metric

from jaxinfer.llm.types import Histogram
from jaxinfer.server.families import by_label, counter, histogram

METHODS = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS"})
OTHER = "other"
LEFT = 499  # the client left before an answer began
GONE, SLOW, ASKED = "client_left", "slow_client", "abort_request"  # why an answer was not waited for
BOUNDS = (0.1, 0.5, 1.0)  # as vLLM has them


class HttpCounts:
    """paths: of the routes; one with a parameter stands for all that begin like it.    probes: those of them that
    vLLM's names leave out, lest they hide the rest.
    """

    def __init__(self, paths: Collection[str], probes: Collection[str] = ()) -> None:
        self._answers: Counter[tuple[str, str]] = Counter()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._seconds: dict[tuple[str, str], Histogram] = defaultdict(lambda: Histogram(BOUNDS))
        self._aborted: Counter[str] = Counter({reason: 0 for reason in (GONE, SLOW, ASKED)})
        self._exact = {path for path in paths if "{" not in path}
        self._prefixes = [path[: path.index("{")] for path in paths if "{" in path]
        self._probes = frozenset(probes)

    def add(self, path: str, method: str, status: int, seconds: float) -> None:
        """A request that has ended, the stream of its answer too. status: 0 when there was none."""
        handler, status = self.handler(path), status or LEFT
        self._answers[handler, str(status)] += 1
        if handler not in self._probes:
            named = method if method in METHODS else OTHER
            self._requests[handler, named, f"{status // 100}xx"] += 1
            self._seconds[handler, named].add(seconds)

    def abort(self, reason: str) -> None:
        """A request whose answer somebody did not want to its end."""
        self._aborted[reason] += 1

    def handler(self, path: str) -> str:
        """Of all paths one of a few names."""
        if path in self._exact:
            return path
        return next((prefix for prefix in self._prefixes if path.startswith(prefix)), OTHER)

    def families(self) -> Iterator[Metric]:
        """The last two under vLLM's names and with its labels."""
        text = "HTTP requests that ended before their answer did, by reason"
        yield counter("jaxinfer:aborted_requests", text, by_label({}, "reason", self._aborted))
        answers = [({"handler": handler, "status": status}, n) for (handler, status), n in self._answers.items()]
        yield counter("jaxinfer:http_answers", "HTTP answers by route and status", answers)
        requests = [({"handler": h, "method": m, "status": kind}, n) for (h, m, kind), n in self._requests.items()]
        yield counter("http_requests", "HTTP requests by route, method and kind of status, without probes", requests)
        seconds = [({"handler": handler, "method": method}, took) for (handler, method), took in self._seconds.items()]
        yield histogram("http_request_duration_seconds", "From its head to the end of its answer", seconds)
