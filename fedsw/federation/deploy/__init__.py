"""The pieces of a deployment: certificates, node keys, processes, the SuperLink and the SuperNodes."""
