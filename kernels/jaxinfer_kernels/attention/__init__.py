"""Paged attention, and what stores new keys and values: of decode steps and of any others."""
