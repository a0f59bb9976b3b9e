"""For Python and notebooks: measure a study, load its results. `specprof` itself names what is public."""
