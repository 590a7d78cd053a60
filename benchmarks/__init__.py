"""Measurements, `python -m benchmarks`; nothing here is imported by the packages."""
