"""RMS norm."""
