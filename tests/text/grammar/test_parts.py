"""Parts: each object of a schema whose keys are keywords, with its place and without."""

from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.text.grammar.parts import parts, placeless

NAMES = st.sampled_from(["properties", "patternProperties", "$defs", "items", "anyOf", "const", "enum", "default", "a"])
SCHEMAS = st.recursive(
    st.sampled_from([True, None, 1, "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=30,
).filter(lambda schema: isinstance(schema, dict | list))


@given(SCHEMAS)
def test_the_parts_without_places_are_the_parts(schema):
    assert sorted(map(id, placeless(schema))) == sorted(id(part) for part, _ in parts(schema))
