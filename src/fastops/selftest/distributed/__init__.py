"""``--distributed``: every operator on DTensors of several processes, in the placements that its tensors may have."""
