"""``python -m fastops.selftest``: compares every op with float64 on the machine it runs on."""
