"""A campaign against the package: damaged files, killed processes, full disks, calls in any order.

`python -m tests.campaign` runs it; `test_campaign.py` runs a slice of it with the other tests.
"""
