"""A program for test_giving_up.py and the soak: `jaxinfer serve` as it is, but for faults in its engine process.

Arguments: a JSON file of faults, the path of a socket for orders or "", then those of `jaxinfer serve`.
"""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from jaxinfer.cli.options import EngineCommand
from jaxinfer.cli.serve import OPTIONS, serve
from jaxinfer.config import Resolved
from jaxinfer.errors import JaxInferError
from jaxinfer.llm.process import EngineProcess
from tests.support.faulty_child import MODULE


def main() -> None:
    faults, orders, *arguments = sys.argv[1:]

    def run(resolved: Resolved, params: Mapping[str, Any]) -> int:
        base = "dry run" if params["dry_run"] else "real"
        return serve(resolved, params, partial(EngineProcess, child=(MODULE, base, faults, *filter(None, (orders,)))))

    try:
        sys.exit(EngineCommand("serve", run, OPTIONS, help="").main(arguments, standalone_mode=False))
    except JaxInferError as error:  # as cli.main does
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
