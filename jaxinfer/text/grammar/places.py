"""Places of a JSON schema: two answers that stand at the same one may go on in the same ways.

What may follow a value depends on what is around it, not on the value. So a place is the names and numbers of the
objects and arrays that are open, and the text of the value that has begun; of a number, and of a string that is bounded
in length alone or by a pattern alone not even that, but how far away the bounds are, or where in the pattern it is.
"""

import json
from collections.abc import Hashable, Mapping
from typing import Any, Literal, NamedTuple

from jaxinfer.text.grammar.digits import Digits
from jaxinfer.text.grammar.patterns import PLAIN, Pattern, pattern_of
from jaxinfer.text.grammar.source import GUIDANCE, JSON_SCHEMA, MAX_SPACES, NO_CODES

MAX_RAW = 64  # bytes of a name or value that is kept as it is: two long ones that are alike are rare
MAX_OPEN = 64  # objects and arrays within one another; an answer that goes deeper is followed no further
MAX_NODES, MAX_PATTERN_PLACES = 20_000, 4000
EXACT = 1 << 53  # integers above are others to llguidance, which has them as doubles
MAX_CHOICES = 4  # within one another
_SPACES = b" \n\r\t"
_AFTER = _SPACES + b",]}"  # what may follow a value
_CLASSES = {"string": b'"', "object": b"{", "array": b"[", "null": b"n", "boolean": b"tf"}
_CLASSES |= dict.fromkeys(("integer", "number"), b"-0123456789")
_NOTES = {"title", "description", "default", "examples", "deprecated", "$comment", "$schema", "$defs", "definitions"}
_BOUNDS = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}
_KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern"},
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set(),
}


class Node:
    """What one part of a schema says of where an answer stands in a value of its. kind "other": nothing.

    bounds: of a string's characters and of an array's items; None: there is none.    pattern: a string's, which has no
    bounds then.    digits: a number's.    names: an object's, as llguidance spells them: spelt otherwise it is a name
    that the schema does not list.    inner: what is said of a value within that has none of them.    by_first: which
    node says more, by the first byte of a value.    unread: the part, until an answer comes to it.
    """

    __slots__ = ("bounds", "by_first", "digits", "inner", "kind", "names", "pattern", "unread")

    def __init__(self, unread: dict[str, Any] | None = None) -> None:
        self.unread = unread
        self.kind = "other"
        self.bounds: tuple[int, int | None] = 0, None
        self.pattern: Pattern | None = None
        self.digits: Digits | None = None
        self.names: Mapping[bytes | int | None, Node] = {}
        self.inner = self
        self.by_first: Mapping[int, Node] = {}


# What an answer is in the middle of. due: a value or an array's end comes next.    after: a value; what is around it
# goes on.    name_due: a name or an object's end.    colon: after a name.    other: a value that is kept as it is.
type Phase = Literal["due", "string", "pattern", "number", "other", "name_due", "name", "colon", "after"]


class Open(NamedTuple):
    """An object or array that is open. mark: an object's newest name, -1 for one that its schema does not list, None
    for none; or how many of an array's items are whole.    depth: it is the so manieth within one another."""

    around: "Open | None"
    node: Node
    mark: bytes | int | None
    depth: int


class Place(NamedTuple):
    """Where an answer stands. length: white space since the last sign; of a string, its whole characters, or its
    pattern's state; of a number its state.

    raw: of a name, of a value kept as it is, of a character of which bytes are missing, of a string from where its
    pattern was not followed any more.    node: of a string or a number.
    depth: brackets of a value kept as it is; -1: it has none.    quoted: 0 outside of its texts, 1 in one, 2 after a
    backslash.    is_long: raw is not all of it.
    """

    phase: Phase
    open: Open | None
    length: int = 0
    raw: bytes = b""
    node: Node | None = None
    depth: int = 0
    quoted: int = 0
    is_long: bool = False


def places_of(text: str, longest: int) -> "Places | None":
    """Of a grammar's text that is one schema (see source.source_of). None: of others nothing is known."""
    if not text.startswith(JSON_SCHEMA):
        return None
    try:
        schema = json.loads(text.removeprefix(JSON_SCHEMA))
        if not isinstance(schema, dict) or schema.pop("x-guidance", None) not in (*GUIDANCE, NO_CODES):
            return None  # a client's own, in Lark, which may read white space in its own way
        return Places(schema, longest)
    except (ValueError, RecursionError):
        return None


class Places:
    """Those of one schema, for one thread. longest: the most bytes of a token."""

    def __init__(self, schema: Any, longest: int) -> None:
        self._reader = _Reader(schema)
        self._longest = longest
        self.start = Place("due", None)

    def key(self, place: Place, last: Hashable) -> Hashable | None:
        """The same for places after which the same tokens may come; None: nothing is known of that.

        last: the token that came last, or what matters of it. Where the next byte is forced, llguidance looks for the
        tokens that a tokenizer would go on with after it; in a string that may become longer none is.
        """
        if place.is_long:
            return None
        last = None if is_open(place) else last
        if place.phase != "string":
            return place, last
        assert place.node is not None
        least, most = place.node.bounds
        far = self._longest
        left = far if most is None else min(most - place.length, far)
        needed = min(max(least - place.length, 0), far)
        return place.open, place.raw, needed, left, last

    def after(self, place: Place, text: bytes) -> Place | None:
        """Where it stands after so much more; None where that is none of the schema's."""
        if place.phase == "string" and not place.raw and is_plain(text):
            return _longer(place, len(text))
        if place.phase == "pattern" and not (place.raw or place.is_long):
            assert place.node is not None and place.node.pattern is not None
            if (state := place.node.pattern.walk(place.length, text)) is not None:
                return Place("pattern", place.open, state, node=place.node)
        now: Place | None = place
        for byte in text:
            now = None if now is None else self._next(now, byte)
        return now

    def _next(self, place: Place, byte: int) -> Place | None:
        match place.phase:
            case "string":
                return _in_string(place, byte)
            case "pattern":
                return _in_pattern(place, byte)
            case "number":
                return self._in_number(place, byte)
            case "other":
                return self._in_other(place, byte)
            case "name":
                return _in_name(place, byte)
        if byte in _SPACES:
            return place._replace(length=place.length + 1)
        match place.phase:
            case "due":
                return self._begin(place, byte)
            case "name_due":
                if byte == ord('"'):
                    return Place("name", place.open)
                return _close(place, byte) if place.quoted == 0 else None
            case "colon":
                return Place("due", place.open) if byte == ord(":") else None
        return _go_on(place, byte)

    def _begin(self, place: Place, byte: int) -> Place | None:
        """With the first byte of a value."""
        around = place.open
        if around is not None and around.node.kind == "array" and around.mark == 0 and byte == ord("]"):
            return _close(place, byte)
        node = self._reader.root if around is None else around.node.inner
        if around is not None and around.node.kind == "object":
            node = around.node.names.get(around.mark, node)
        self._reader.read(node)
        for _ in range(MAX_CHOICES):
            node = node.by_first.get(byte, node)
            self._reader.read(node)
        depth = 1 if around is None else around.depth + 1
        match (node.kind, chr(byte)):
            case ("string", '"'):
                return Place("string" if node.pattern is None else "pattern", around, node=node)
            case ("object", "{"):
                return Place("name_due", Open(around, node, None, depth)) if depth <= MAX_OPEN else None
            case ("array", "["):
                return Place("due", Open(around, node, 0, depth)) if depth <= MAX_OPEN else None
        if node.digits is not None and byte in _CLASSES["number"]:
            return self._in_number(Place("number", around, node=node), byte)
        other = Place("other", around, depth=-1)
        return self._in_other(other if chr(byte) not in '"{[' else other._replace(depth=0), byte)

    def _in_number(self, place: Place, byte: int) -> Place | None:
        """It ends with what follows it."""
        assert place.node is not None and place.node.digits is not None
        if byte in _AFTER:
            return self._next(_whole(place.open), byte) if place.node.digits.may_end(place.length) else None
        state = place.node.digits.after(place.length, byte)
        return None if state is None else place._replace(length=state)

    def _in_other(self, place: Place, byte: int) -> Place | None:
        """A value that is kept as it is ends with its last bracket or quote, or with what follows it."""
        if place.depth < 0 and byte in _AFTER:
            return self._next(_whole(place.open), byte)
        depth, quoted = place.depth, place.quoted
        if quoted == 2:
            quoted = 1
        elif quoted == 1:
            quoted = {ord('"'): 0, ord("\\"): 2}.get(byte, 1)
        else:
            quoted = int(byte == ord('"'))
            depth += (byte in b"{[") - (byte in b"}]")
        if depth == 0 and quoted == 0:
            return _whole(place.open)
        is_long = place.is_long or len(place.raw) >= MAX_RAW
        raw = b"" if is_long else place.raw + bytes([byte])
        return Place("other", place.open, 0, raw, None, depth, quoted, is_long)


def is_open(place: Place) -> bool:
    """Whether it is known that several bytes may come next, so that none is forced, whatever came last."""
    if place.phase in ("due", "name_due", "colon", "after"):
        return place.open is not None and place.length < MAX_SPACES
    if place.phase == "string" and place.raw:
        return place.raw[0] != ord("\\") or len(place.raw) == 1  # several bytes may go on with any character
    if place.raw or place.is_long or place.node is None:
        return False
    if place.phase == "number" and place.node.digits is not None:
        return place.open is not None and place.node.digits.may_end(place.length)
    if place.phase == "pattern" and place.node.pattern is not None:
        return place.node.pattern.is_open(place.length)
    most = place.node.bounds[1]
    return place.phase == "string" and (most is None or place.length < most)


def _longer(place: Place, count: int) -> Place:
    """A string after so many more characters; without a longest length they count up to the shortest."""
    assert place.node is not None
    least, most = place.node.bounds
    length = place.length + count if most is not None else min(place.length + count, least)
    return Place("string", place.open, length, b"", place.node)


def is_plain(text: bytes) -> bool:
    """Whether each byte is a character of a JSON string that stands for itself."""
    return text.isascii() and b'"' not in text and b"\\" not in text


def _in_string(place: Place, byte: int) -> Place | None:
    if byte == ord('"') and not place.raw:
        return _whole(place.open)
    raw = place.raw + bytes([byte])
    if raw[:1] == b"\\":
        is_whole = len(raw) == 6 if raw[1:2] == b"u" else len(raw) == 2
        if is_whole and raw[1:3] in (b"ud", b"uD"):  # half of a character
            return Place("other", place.open, quoted=1, is_long=True)
    else:
        try:
            is_whole = bool(raw.decode())
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                return None
            is_whole, raw = False, _begun(raw)
    return _longer(place, 1) if is_whole else place._replace(raw=raw)


def _begun(raw: bytes) -> bytes:
    """Of characters that have begun and may go on in the same ways one: only four first bytes bound the second."""
    if len(raw) == 1 and raw[0] in (0xE0, 0xED, 0xF0, 0xF4):
        return raw
    length = 2 if raw[0] < 0xE0 else 3 if raw[0] < 0xF0 else 4
    return {2: b"\xc3", 3: b"\xe1", 4: b"\xf1"}[length] + b"\x80" * (len(raw) - 1)


def _in_pattern(place: Place, byte: int) -> Place | None:
    assert place.node is not None and place.node.pattern is not None
    if byte == ord('"') and place.quoted != 2:
        return _whole(place.open)
    if not (place.raw or place.is_long) and byte in PLAIN:
        state = place.node.pattern.after(place.length, byte)
        if state is not None:
            return place._replace(length=state)
    is_long = place.is_long or len(place.raw) >= MAX_RAW
    quoted = 2 if byte == ord("\\") and place.quoted != 2 else 1
    return place._replace(raw=b"" if is_long else place.raw + bytes([byte]), quoted=quoted, is_long=is_long)


def _in_name(place: Place, byte: int) -> Place | None:
    if byte == ord('"') and not place.quoted:
        assert place.open is not None
        is_listed = not place.is_long and place.raw in place.open.node.names
        return Place("colon", place.open._replace(mark=place.raw if is_listed else -1))
    escaped = int(byte == ord("\\") and not place.quoted)
    is_long = place.is_long or len(place.raw) >= MAX_RAW
    return Place("name", place.open, raw=b"" if is_long else place.raw + bytes([byte]), quoted=escaped, is_long=is_long)


def _whole(around: Open | None) -> Place:
    """After a value."""
    if around is not None and around.node.kind == "array":
        assert isinstance(around.mark, int)
        least, most = around.node.bounds
        around = around._replace(mark=min(around.mark + 1, max(least, most or 0, 1)))
    return Place("after", around)


def _go_on(place: Place, byte: int) -> Place | None:
    """After a value, with a comma or the end of what is around it."""
    if byte != ord(","):
        return _close(place, byte)
    if place.open is None:
        return None
    if place.open.node.kind == "array":
        return Place("due", place.open)
    return Place("name_due", place.open, quoted=1)


def _close(place: Place, byte: int) -> Place | None:
    if place.open is None or byte != ord("]" if place.open.node.kind == "array" else "}"):
        return None
    return _whole(place.open.around)


def _is_schema(part: Any) -> bool:
    """Or none, which any value is of."""
    return part is None or isinstance(part, bool | dict)


def _spelt(name: str) -> bytes:
    """As llguidance does: as JSON is written, with no more escapes than there must be."""
    if name.isascii() and name.isidentifier():
        return name.encode()
    return json.dumps(name, ensure_ascii=False)[1:-1].encode(errors="surrogatepass")


def _digits(schema: Mapping[str, Any]) -> Digits:
    """Of an integer whose bounds are integers."""
    least = [schema[name] + more for name, more in (("minimum", 0), ("exclusiveMinimum", 1)) if name in schema]
    most = [schema[name] - less for name, less in (("maximum", 0), ("exclusiveMaximum", 1)) if name in schema]
    return Digits(max(least, default=None), min(most, default=None))


def _new_any() -> Node:
    """Of every value."""
    found, text, record, items, number = (Node() for _ in range(5))
    text.kind, record.kind, items.kind, number.kind = "string", "object", "array", "number"
    record.inner = items.inner = found
    number.digits = Digits(is_integer=False)
    found.by_first = {ord('"'): text, ord("{"): record, ord("["): items} | dict.fromkeys(_CLASSES["number"], number)
    return found


class _Reader:
    """Nodes of a schema, each part read when an answer comes to it: 300 kB at once hold all others up for 30 ms."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._refs: dict[str, Node] = {}
        self._count = self._num_places = 0
        self._any = _new_any()
        self.root = self._node(schema)
        self.read(self.root)

    def read(self, node: Node) -> None:
        """Find out what it says, if that has not been done."""
        if node.unread is not None:
            part, node.unread = node.unread, None
            self._describe(node, part)

    def _node(self, schema: Any) -> Node:
        """Of one part. What is referred to has one for all references."""
        if schema is None or isinstance(schema, bool):
            return self._any
        if not isinstance(schema, dict):
            return Node()
        if not schema.keys() - _NOTES:
            return self._any
        if schema.keys() - _NOTES != {"$ref"}:
            return Node(schema)
        ref = str(schema["$ref"])
        if ref not in self._refs:
            part = self._part(ref)
            is_whole = isinstance(part, dict) and part.keys() - _NOTES != {"$ref"}
            self._refs[ref] = Node(part if is_whole else None)
        return self._refs[ref]

    def _part(self, ref: str) -> Any:
        """What a reference within the schema names; None: nothing, or it is written in some other way."""
        first, *names = ref.split("/")
        part = self._schema if first == "#" and "%" not in ref else None
        for name in names:
            part = part.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(part, dict) else None
        return part

    def _describe(self, node: Node, schema: dict[str, Any]) -> None:
        kind, rest = schema.get("type"), schema.keys() - _NOTES
        self._count += 1
        if self._count > MAX_NODES:
            return
        if rest in ({"anyOf"}, {"oneOf"}):
            node.by_first = self._either(schema[rest.pop()])
        if not isinstance(kind, str) or kind not in _KEYWORDS or rest - {"type"} - _KEYWORDS[kind]:
            return
        if kind == "object":
            names, required = schema.get("properties", {}), schema.get("required", [])
            others = schema.get("additionalProperties")
            if not (isinstance(names, dict) and isinstance(required, list) and _is_schema(others)):
                return
            if any(name not in names for name in required):
                return
            spelt = {name: _spelt(name) for name in names}
            if max(map(len, spelt.values()), default=0) > MAX_RAW:
                return
            node.names = {spelt[name]: self._node(part) for name, part in names.items()}
            node.inner = self._node(others)
        elif kind in ("integer", "number"):
            bounds = [schema[name] for name in _KEYWORDS["integer"] & rest]
            if not all(type(bound) is int and abs(bound) < EXACT for bound in bounds):
                return
            node.digits = _digits(schema) if kind == "integer" else Digits(is_integer=False)
        else:
            least, most = (schema.get(name) for name in _BOUNDS[kind])
            if not (isinstance(least, int | None) and isinstance(most, int | None) and _is_schema(schema.get("items"))):
                return
            node.bounds = least or 0, most
            if "pattern" in schema:
                node.pattern = self._pattern(schema["pattern"])
                if node.pattern is None or rest & {"minLength", "maxLength"}:
                    return
            node.inner = self._node(schema.get("items"))
        node.kind = kind

    def _pattern(self, text: Any) -> Pattern | None:
        if not isinstance(text, str) or self._num_places > MAX_PATTERN_PLACES:
            return None
        found = pattern_of(text)
        self._num_places += found.num_places if found else 0
        return found

    def _either(self, parts: list[Any]) -> dict[int, Node]:
        """By a value's first byte the one alternative that it can be of."""
        found: dict[int, list[Node]] = {byte: [] for byte in b'"{['}
        for part in parts:
            node, firsts = self._node(part), self._firsts(part)
            for byte, nodes in found.items():
                if byte in firsts:
                    nodes.append(node)
        return {byte: nodes[0] for byte, nodes in found.items() if len(nodes) == 1}

    def _firsts(self, schema: Any) -> bytes:
        """With what its values may begin, as far as somebody has said."""
        if isinstance(schema, dict) and schema.keys() - _NOTES == {"$ref"}:
            schema = self._part(str(schema["$ref"]))
        kind = schema.get("type") if isinstance(schema, dict) else None
        return _CLASSES.get(kind, b'"{[') if isinstance(kind, str) else b'"{['
