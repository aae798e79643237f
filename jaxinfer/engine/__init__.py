"""The host side: the loop, the scheduler, pages and sequences. No jax but through runtime."""
