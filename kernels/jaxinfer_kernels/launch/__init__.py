"""Kernels launched behind each other by one operation of XLA's."""
