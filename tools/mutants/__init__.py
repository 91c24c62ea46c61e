"""Mutation testing: changes the product code in small ways and checks that tests fail."""
