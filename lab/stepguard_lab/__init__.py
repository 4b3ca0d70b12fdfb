"""The lab looks closer: pages, timelines and tables of profiles, comparisons, sweeps.

It may import the gate. The gate never imports the lab.
"""
