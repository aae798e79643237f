"""Sampling: from logits and what each slot's request says of them to one token a row."""
