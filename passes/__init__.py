"""Graph to graph, and graph to StitchPlan."""
