"""`python -m specprof.cli`."""

from specprof.cli import main

main()
