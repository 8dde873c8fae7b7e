"""The least T with a placement: bounds from below, placements from above, and what another cluster would bring."""
