"""Operations of the models, one per file. Imports jax and nothing of jaxinfer."""
