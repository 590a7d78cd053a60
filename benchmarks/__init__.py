"""Measurements; nothing here is imported by the package or its tests."""
