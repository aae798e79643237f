"""Measuring: engines from inside, servers from outside, kernels alone. One file per question, one form of report."""
