"""A grammar of Triton modules, from one source: rules, their renderings for each engine, and the check of a text."""
