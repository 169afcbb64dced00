"""``python -m fastops.bench model``: steps of whole models of transformers, by each way to make them faster."""
