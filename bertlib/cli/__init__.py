"""The command line: flags, errors in one line, output of a terminal."""
