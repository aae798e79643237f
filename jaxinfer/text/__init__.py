"""Text: the tokenizer, chat templates, incremental detokenization and stop strings. No jax, no HTTP."""
