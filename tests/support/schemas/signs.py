"""A schema whose forced text a tokenizer splits in other ways behind some tokens."""

SIGNS = {"type": "object", "properties": {"_id": {"type": "string"}, "$ref": {}, "@type": {"enum": ["_a", "$"]}}}
SIGNS |= {"required": ["_id", "$ref", "@type"], "additionalProperties": False}
