"""Why: what binds a plan, and the smallest set of constraints at fault where there is none."""
