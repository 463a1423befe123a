"""What a person sees of a run: progress, status, the exported front."""
