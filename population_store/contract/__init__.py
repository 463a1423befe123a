"""The parts of the contract that `population_store.testing` puts together, and what they are made of."""
