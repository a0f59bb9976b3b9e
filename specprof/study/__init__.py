"""What to measure: the study file, its prompt suites, and the plan of launches and cells."""
