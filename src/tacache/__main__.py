"""`python -m tacache` is the command line."""

from tacache.cli.command_line import main

main()
