"""``python -m fastops.selftest``: proves on the machine it runs on that every op computes what it says."""
