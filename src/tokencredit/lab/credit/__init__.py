"""The credit benchmark: what a method's token credit is worth at a fixed policy, against measured truth."""
