"""Everything that imports ray: evaluator and proposer actors, the driver loop."""
