"""How a variant becomes another: the contract, rule-based rewrites, LLM operators, model clients."""
