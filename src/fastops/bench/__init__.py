"""``python -m fastops.bench``: times every op on the machine it runs on, beside what a user would pick instead."""
