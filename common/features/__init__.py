"""The parts of each feature that gateway and worker share."""
