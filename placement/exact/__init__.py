"""The placement problem for CP-SAT: the model that the search asks, and the poster's equations (1) to (6)."""
