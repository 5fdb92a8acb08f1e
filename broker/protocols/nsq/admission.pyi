"""What happens between a client and its first command, and what a command needs to be allowed."""
