"""What layers remember, seen from the host: specs, the page pool, prefixes, the manager, offload. No jax."""
