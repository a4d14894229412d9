"""`python -m ensue`: the command line."""

from ensue.cli import main

main()
