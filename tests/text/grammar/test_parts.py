"""Parts: each object of a schema whose keys are keywords, with its place and without."""

from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.text.grammar.parts import parts, placeless, without_unused

NAMES = st.sampled_from(["properties", "patternProperties", "$defs", "items", "anyOf", "const", "enum", "default", "a"])
SCHEMAS = st.recursive(
    st.sampled_from([True, None, 1, "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=30,
).filter(lambda schema: isinstance(schema, dict | list))


@given(SCHEMAS)
def test_the_parts_without_places_are_the_parts(schema):
    assert sorted(map(id, placeless(schema))) == sorted(id(part) for part, _ in parts(schema))


@given(st.data())
def test_a_definition_stays_where_a_part_that_is_used_refers_to_it(data):
    names = ["A", "B/c", "D~", "é"]
    spelt = [name.replace("~", "~0").replace("/", "~1") for name in names]
    asked = {name: data.draw(st.sets(st.sampled_from(range(4)))) for name in ["", *names]}
    key = data.draw(st.sampled_from(["$defs", "definitions"]))
    inner = data.draw(st.booleans())

    def part(name):
        refs = [{"$ref": f"#/{key}/{spelt[i]}" + "/anyOf/0" * inner} for i in sorted(asked[name])]
        return {"anyOf": [{"const": {key: {"x": {}}}}, *refs]}

    schema = {**part(""), key: {name: part(name) for name in names}}
    used, unread = set(), [""]
    while unread:
        new = {names[i] for i in asked[unread.pop()]} - used
        used |= new
        unread += [] if inner else new  # a reference to a part of one asks for no more of it
    found = without_unused(schema)
    for name in names:
        assert found[key][name] == (schema[key][name] if name in used else True)
    assert {**found, key: 0} == {**schema, key: 0}


@given(st.sampled_from(["other.json", "#name", "#/$defs/none", "https://x/y#/$defs/A"]))
def test_all_definitions_stay_where_a_reference_is_not_understood(ref):
    schema = {"items": {"$ref": ref}, "$defs": {"A": {"minimum": 1}}}
    assert without_unused(schema) is schema
