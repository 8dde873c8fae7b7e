"""From a training graph and a cluster to a plan: prices of every node, searches, and the plan that holds."""
