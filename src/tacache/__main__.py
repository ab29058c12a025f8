"""`python -m tacache` is the command line."""

from tacache.cli import main

main()
