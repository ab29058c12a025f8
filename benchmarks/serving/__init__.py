"""Serving: batch times and the batcher as they are measured, and many GPUs by simulation."""
