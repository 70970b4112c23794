"""Benchmarks: figures side by side with a floor (plain system calls) or the real peer, in one run."""
