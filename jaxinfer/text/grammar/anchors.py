r"""Anchors: where an expression has `^` or `$` within it, or the end of a word, which llguidance cannot follow.

It takes `^` where nothing comes before it, and `$` where nothing comes behind, in groups and alternatives too, as long
as no repetition is of them.
"""

import dataclasses
import re
from collections.abc import Iterable

# Flags alone, the begin of a group, a repetition; as pieces of readable.py's signs
SIGN = r"\(\?[A-Za-z-]+\)|\((?:\?(?:P?<\w+>|[A-Za-z-]*:))?|[*+?]|\{\d+(?:,\d*)?\}"
_FLAGS = re.compile(r"\(\?([A-Za-z]*)(?:-[A-Za-z]+)?[:)]")
_REPEATED = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
_ONCE = ("{1}", "{1,1}")


@dataclasses.dataclass(slots=True)
class _Group:
    """What of a group has been read.

    is_behind: something comes before the group.    is_begun: before what comes next.    is_ended: no more may come,
    in this alternative; may_end: in one.    is_anchored: it has an anchor.
    """

    is_behind: bool
    is_begun: bool
    is_ended: bool = False
    may_end: bool = False
    is_anchored: bool = False


def has_anchor_within(signs: Iterable[str]) -> bool:
    """Of an expression, sign by sign, each class, escape and begin of a group as one."""
    groups, is_last_anchored, has_lines = [_Group(is_behind=False, is_begun=False)], False, False
    for sign in signs:
        group = groups[-1]
        if _REPEATED.fullmatch(sign):
            if is_last_anchored and sign not in _ONCE:
                return True
            continue
        is_last_anchored = False
        if flags := _FLAGS.fullmatch(sign):
            has_lines |= "m" in flags[1]
            if sign.endswith(")"):
                continue
        if sign == "|":
            group.may_end |= group.is_ended
            group.is_begun, group.is_ended = group.is_behind, False
        elif sign == ")" and len(groups) > 1:
            closed, group = groups.pop(), groups[-1]
            group.is_begun = True
            group.is_ended = closed.is_ended or closed.may_end
            is_last_anchored = closed.is_anchored
            group.is_anchored |= closed.is_anchored
        elif group.is_ended and sign != "$" or sign == "^" and group.is_begun or sign in "^$" and has_lines:
            return True
        elif sign in "^$":
            group.is_ended |= sign == "$"
            group.is_anchored = is_last_anchored = True
        elif sign[0] == "(":
            groups.append(_Group(is_behind=group.is_begun, is_begun=group.is_begun))
        else:
            group.is_begun = True
    return False
