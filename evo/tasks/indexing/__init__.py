"""Tasks that move rows: gathers, segmented sums, layouts."""
