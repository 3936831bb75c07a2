"""What people look at. This room is handed plain results and knows nothing of how they came
about."""
