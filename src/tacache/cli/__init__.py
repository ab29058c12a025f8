"""The command line of TACache; `command_line` puts the commands together."""
