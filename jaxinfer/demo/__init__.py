"""The bundled demo checkpoint: its generator of texts, tokenizer, trainer, evaluation and data card (README.md)."""
