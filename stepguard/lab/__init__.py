"""Looks closer: pages, timelines and tables of profiles, comparisons, sweeps.

The lab may import the gate. The gate never imports the lab.
"""
