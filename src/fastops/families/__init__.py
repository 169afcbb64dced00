"""What the operators of a family share: checks, fakes, and how an operator is made of its formulas."""
