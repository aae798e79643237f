"""The host side: the loop, the scheduler, pages and sequences. scheduler and pages import no jax."""
