"""From a training graph and a cluster to a plan that holds.

Here live the prices of nodes at levels of T (cycles a frame), the placement problem that they make, the searches over
it, and what becomes of a placement found: network ports and homes of memories priced in, relays, layers in parts.  A
module owns one state or has none: what nodes cost (`prices`), the bound of all foldings (`any_bound`), the best plan
(`best`), where the time goes (`timetable`), the best placement found (`ladder`).  What circuits cost is asked of
`hdl`, where items stand of `placement`; files, steps and terminals are the flow's and may not come in here.
"""
