"""Commands for the machine that the command runs on."""
