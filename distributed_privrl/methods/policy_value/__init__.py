"""What an agent that was trained on a release would earn in reality, as a figure that may leave."""
