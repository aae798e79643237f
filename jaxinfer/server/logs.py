"""The server's log as lines of JSON, for what collects logs. Prompts, answers and keys are in no record."""

import json
import logging
import time

REQUEST_FIELDS = ("request_id", "tenant", "method", "path", "status", "seconds")  # given as `extra`


class JsonLines(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, the request's fields if any, a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        given = vars(record)
        line |= {name: given[name] for name in REQUEST_FIELDS if name in given}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
