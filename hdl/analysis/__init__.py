"""What is known of an elaborated circuit without simulating it: ranges and intervals of values, data flow, which bits
matter, which are equal, what follows what within a cycle, gates.  It reads MyHDL's generators and changes nothing;
what a part makes of it is in `hdl.costs`.
"""
