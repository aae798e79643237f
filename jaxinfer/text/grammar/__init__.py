"""Grammars that answers keep to: what is asked for as llguidance's text, its trial in a child, compiled masks."""
