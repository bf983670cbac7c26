"""Side-by-side measurements against peers: `python -m benchmarks` or `make bench`."""
