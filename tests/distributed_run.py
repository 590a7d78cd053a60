"""A small run of one of several workers, which may be killed at any moment; what it saw goes to a file of its own.

python -m tests.distributed_run FOLDER RANK PORTS ENGINE EPOCHS
"""
