"""Studies: comparisons, the criterion C, schedule search, loss landscapes, benchmarks."""
