"""What it means: sealed cells become figures with intervals, and reasons not to believe one. No engine is needed."""
