"""Studies made of many runs: the criterion of strategies, and the search for a schedule under a
budget."""
