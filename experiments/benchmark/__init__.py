"""Times and counts: what each part costs, how far it is from the machine's ceiling, and how public
peers do beside it.
"""
