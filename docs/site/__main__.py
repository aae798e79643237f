"""`python -m docs.site [FOLDER]`, or `make site`: build the documentation into build/site."""

import sys
from pathlib import Path

from docs.site.build import build

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/site")
    num_pages = build(folder)
    print(f"{num_pages} pages: {(folder / 'index.html').resolve().as_uri()}")
