"""The tables of other engines' documents, made again on this machine: a suite a file. See docs/suites.md."""
