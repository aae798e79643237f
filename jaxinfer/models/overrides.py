"""A config.json in which the user has put other values, and which those are."""

from collections.abc import Mapping
from typing import Any

OF_THE_USER = " (hf_overrides)"  # behind the name of a key whose value is the user's


class OverriddenConfig(dict[str, Any]):
    """What config.json says with the values of hf_overrides in the place of its own.

    overridden: the keys of those values.
    """

    def __init__(self, raw: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
        super().__init__({**raw, **overrides})
        self.overridden = frozenset(overrides)
