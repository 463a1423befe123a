"""Finding the knobs of a module: reading it, drafting edits of its text, and one file per kind of knob."""
