"""What an operator does on the box itself, where the gateway may be down: doctor, keys."""
