"""Terminal output: plan, progress, results, inspected rows; and the picture of a graph."""
